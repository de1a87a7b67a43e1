"""`coterie predict`: what it writes, and what it refuses."""

import gzip
from io import StringIO

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.cli.main import main
from tests.prediction.conftest import make_table

WORDS = ["client=site", "label=outcome", "hidden=8", "lr=0.1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of the command line on classes."""
    path = tmp_path_factory.mktemp("runs")
    make_table("classes").to_csv(path / "train.csv", index=False)
    words = ["ifca", str(path / "train.csv"), *WORDS, "k=2", "rounds=4"]
    assert main(["run", *words, "--out", str(path / "run")]) == 0
    (path / "train.csv").unlink()
    return path / "run"


@pytest.fixture
def new(tmp_path):
    """The path of a table with known clients, new ones with labels and one without."""
    rows = make_table("classes", clients=9, rows=8, seed=1)
    rows.loc[rows.site == "s8", "outcome"] = None
    rows.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_rows_keep_their_order_and_their_text(folder, new, capsys):
    lines = new.read_text().splitlines()
    text = "\n".join(
        [lines[0] + ",note", *(f'{line},"00{i}, a"' for i, line in enumerate(lines[1:]))]
    )
    new.write_text(text + "\n")
    assert main(["predict", str(folder), str(new)]) == 0
    out, err = capsys.readouterr()
    assert "72 rows predicted: " in err
    for before, after in zip(text.splitlines(), out.splitlines(), strict=True):
        assert after.startswith(before + ",")
    found = pd.read_csv(StringIO(out))
    expected = coterie.load_run(folder).predictions(new)
    added = ["prediction", "probability_ill", "probability_well", "group", "group_by"]
    assert list(found.columns[-5:]) == added
    np.testing.assert_array_equal(found.prediction, expected.values)
    shares = found[["probability_ill", "probability_well"]].to_numpy(np.float32)
    np.testing.assert_array_equal(shares, expected.probabilities)
    np.testing.assert_array_equal(found.group.fillna(-1), expected.group)
    np.testing.assert_array_equal(found.group_by, expected.chosen)
    assert set(found.group_by) == {"training", "labels", "average"}


def test_tables_come_back_as_they_came(folder, new, tmp_path, capsys):
    rows = pd.read_csv(new, parse_dates=["day"])
    expected = coterie.load_run(folder).predictions(new)
    for ending, write, read in (
        ("parquet", pd.DataFrame.to_parquet, pd.read_parquet),
        ("feather", pd.DataFrame.to_feather, pd.read_feather),
    ):
        path, out = tmp_path / f"rows.{ending}", tmp_path / f"out.{ending}"
        write(rows, path)
        assert main(["predict", str(folder), str(path), "--out", str(out)]) == 0
        found = read(out)
        pd.testing.assert_frame_equal(found[rows.columns], read(path))
        np.testing.assert_array_equal(found.probability_ill, expected.probabilities[:, 0])
        np.testing.assert_array_equal(found.group.fillna(-1), expected.group)
        assert main(["predict", str(folder), str(path)]) == 2
        assert f"say --out predicted.{ending}" in capsys.readouterr().err


def test_a_table_with_decimal_commas_gets_them(folder, new, tmp_path, capsys):
    rows = pd.read_csv(new)
    rows.to_csv(tmp_path / "comma.csv", sep=";", decimal=",", index=False)
    assert main(["predict", str(folder), str(tmp_path / "comma.csv")]) == 0
    (tmp_path / "out.csv").write_text(capsys.readouterr().out)
    found = pd.read_csv(tmp_path / "out.csv", sep=";", decimal=",")
    expected = coterie.load_run(folder).predict_proba(rows)
    np.testing.assert_allclose(found.probability_ill, expected[:, 0], atol=1e-6)


def test_compressed_text_and_folders_of_files(folder, new, tmp_path, capsys):
    expected = coterie.load_run(folder).predict_proba(new)
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(new.read_bytes()))
    out = tmp_path / "out.csv.gz"
    assert main(["predict", str(folder), str(tmp_path / "new.csv.gz"), "--out", str(out)]) == 0
    np.testing.assert_allclose(pd.read_csv(out).probability_ill, expected[:, 0], atol=1e-6)
    sites = tmp_path / "sites"
    sites.mkdir()
    rows = pd.read_csv(new)
    for site, own in rows.groupby("site"):
        own.drop(columns="site").to_csv(sites / f"{site}.csv", index=False)
    assert main(["predict", str(folder), str(sites), "--out", str(tmp_path / "all.csv")]) == 0
    found = pd.read_csv(tmp_path / "all.csv")
    assert len(found) == len(rows)
    assert set(found.site[found.group_by == "training"]) == {f"s{c}" for c in range(6)}


def test_a_table_without_a_client_column(folder, new, capsys):
    rows = pd.read_csv(new).drop(columns=["site", "outcome"])
    rows.to_csv(new, index=False)
    assert main(["predict", str(folder), str(new)]) == 0
    assert "72 by average" in capsys.readouterr().err
    assert main(["predict", str(folder), str(new), "--client", "s2"]) == 0
    assert "72 by training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_text(""), "new.csv has no rows"),
        (lambda path: path.write_text("site,age,dose,city,day\n"), "new.csv has no rows"),
        (lambda path: path.write_text("site,age\ns1,3\n"), "no column named `dose`"),
        (lambda path: path.unlink(), "no file or folder is at"),
        (
            lambda path: path.write_text(path.read_text().replace("outcome", "prediction")),
            "has a column `prediction` already",
        ),
        (
            lambda path: path.write_text(path.read_text().replace(",well", ",dead")),
            "holds classes that training did not have",
        ),
    ],
)
def test_what_cannot_be_predicted_leaves_no_file(folder, new, tmp_path, capsys, spoil, sentence):
    spoil(new)
    out = tmp_path / "out.csv"
    assert main(["predict", str(folder), str(new), "--out", str(out)]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_places_that_cannot_be_written_to(folder, new, tmp_path, capsys):
    before = new.read_text()
    for out, sentence in (
        (new, "--out must not be the table itself"),
        (tmp_path / "no" / "out.csv", "--out must be in a folder that is there"),
        (tmp_path / "out.xlsx", "out.xlsx must end in one of .csv"),
    ):
        assert main(["predict", str(folder), str(new), "--out", str(out)]) == 2
        assert sentence in capsys.readouterr().err
    assert new.read_text() == before


def test_runs_that_are_of_no_table(new, tmp_path, capsys):
    words = ["run", "fedavg", "rotated-digits", "clients=4", "hidden=4", "rounds=1"]
    assert main([*words, "--out", str(tmp_path / "digits")]) == 0
    assert main(["predict", str(tmp_path / "digits"), str(new)]) == 2
    assert "whose samples are no rows of a table" in capsys.readouterr().err
    assert main(["predict", str(tmp_path), str(new)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_clusters_of_samples_are_a_column(new, tmp_path, capsys):
    for algorithm in ("k-fed", "uifca"):
        words = ["run", algorithm, str(new), "client=site", "label=", "features=age,dose", "k=2"]
        assert main([*words, "rounds=1", "--out", str(tmp_path / algorithm)]) == 0
        capsys.readouterr()
        out = tmp_path / f"{algorithm}.csv"
        assert main(["predict", str(tmp_path / algorithm), str(new), "--out", str(out)]) == 0
        found = pd.read_csv(out)
        assert "prediction" not in found
        assert set(found.group) <= {0, 1}
        assert set(found.group_by) == {"sample"}


def test_copies_with_several_values_keep_the_models_of_the_best(tmp_path, new, capsys):
    rows = tmp_path / "rows.csv"
    make_table("classes").to_csv(rows, index=False)
    words = [
        "run",
        "ifca",
        str(rows),
        "client=site",
        "label=outcome",
        "hidden=4",
        "rounds=2",
        "k=2",
    ]
    more = ["lr=0.01,0.1", "starts=2", "finetune=1", "--out", str(tmp_path / "grid")]
    assert main([*words, *more]) == 0
    assert (
        main(["predict", str(tmp_path / "grid"), str(new), "--out", str(tmp_path / "o.csv")]) == 0
    )
    assert "by own" in capsys.readouterr().err
