import json
from pathlib import Path

import pytest
from torch import nn

import coterie
from coterie import IFCA, CoterieWarning, FedAvg, Local, Regression
from coterie.cli import main as cli
from coterie.core.errors import SettingError

SMALL = {"clients": 8, "rounds": 2}


@pytest.fixture(scope="module")
def found():
    return coterie.compare([IFCA(k=4), "fedavg"], "rotated-digits", seeds=2, **SMALL)


def test_the_table_is_that_of_the_command_line(found, tmp_path, capsys):
    words = ["ifca,fedavg", "rotated-digits", "seeds=2", "ifca.k=4", "clients=8", "rounds=2"]
    words += ["--format", "latex", "--out", str(tmp_path / "c")]
    assert cli.main(["compare", *words]) == 0
    printed = capsys.readouterr().out
    assert found.latex() in printed
    accuracy = found.table.loc["ifca", "accuracy"]
    assert accuracy.split(" ± ")[0] in printed
    assert found.table.index.name == "algorithm"


def test_every_run_has_its_row_and_the_figures_have_error_bars(found, tmp_path):
    runs = found.runs
    assert runs.columns[:3].tolist() == ["federation", "algorithm", "seed"]
    assert len(runs) == 4
    own = runs[runs["algorithm"] == "ifca"]["accuracy"]
    figure = found.figure("accuracy")
    assert list(figure.data[0].x) == ["ifca", "fedavg"]
    assert figure.data[0].y[0] == pytest.approx(own.mean(), rel=1e-4)
    assert figure.data[0].error_y.array[0] == pytest.approx(own.std(), rel=1e-4)
    assert len(found.curves("accuracy").data) == 4  # a band and a line for each
    assert "ifca" in found.report(tmp_path / "page.html").read_text()
    assert "fedavg" in str(found)
    with pytest.raises(SettingError, match="no run has the metric accurracy"):
        found.figure("accurracy")


def test_data_of_the_users_own_and_several_of_one_kind(tmp_path):
    one, two = (coterie.load("rotated-digits", clients=6, seed=seed) for seed in (0, 1))
    found = coterie.compare(
        [IFCA(k=2), IFCA(k=3), Local()],
        {"one": one, "two": two},
        seeds=[4],
        rounds=1,
        folder=tmp_path / "c",
    )
    table = found.table
    assert table.index.tolist() == [
        (name, label)
        for name in ("one", "two")
        for label in ("ifca k=2", "ifca k=3", "local", "constant")
    ]
    assert len(list((tmp_path / "c").rglob("report.html"))) == 6
    again = coterie.compare([IFCA(k=2)], *one, seeds=[4], rounds=1)
    metrics = found.runs.columns[3:]
    assert again.runs.loc[0, metrics].to_dict() == found.runs.loc[0, metrics].to_dict()


def test_runs_on_a_table_leave_their_files_in_the_folder(tmp_path):
    rows = [f"{i % 4},{i % 2},{i % 2 + i / 50},{i / 9}" for i in range(40)]
    table = tmp_path / "data.csv"
    table.write_text("\n".join(["shop,label,a,b", *rows]))
    settings = {"client": "shop", "label": "label", "rounds": 1, "seeds": 1}
    coterie.compare([FedAvg(), "local"], str(table), folder=tmp_path / "c", **settings)
    made = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert made == ["data-fedavg-0", "data-local-0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "data.csv"]


def test_a_run_that_fails_or_diverges_leaves_the_others():
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    task = Regression(nn.Linear(3, 1))
    algorithms = {
        "wild": FedAvg(lr=1e6, steps=100),
        "impossible": IFCA(k=9),
        "fine": FedAvg(lr=0.01),
    }
    with (
        pytest.warns(CoterieWarning, match="no longer finite"),
        pytest.warns(CoterieWarning, match=r"impossible on .* failed: .*number of clients"),
    ):
        found = coterie.compare(algorithms, federation, task, seeds=2, rounds=2)
    assert len(found.failures) == 2
    table = found.table
    assert table.loc["wild"].astype(str).str.contains("diverged").any()
    assert table.columns[-1] == "against fine"
    assert len(found.figure("loss" if "loss" in found.runs else "train_loss").data[0].x) == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        (([], "rotated-digits"), {}, "at least one algorithm"),
        (([IFCA()], []), {}, "at least one federation"),
        ((["ifca", "ifca"], "rotated-digits"), {}, "ifca is in the comparison twice"),
        (([IFCA], "rotated-digits"), {}, "must be an instance"),
        (([IFCA()], "rotated-digits"), {"k": 3}, "no run of the comparison has a setting named k"),
        (([IFCA()], "rotated-digits"), {"round": 3}, "named round; did you mean `rounds`"),
        (([IFCA()], "rotated-digits"), {"seed": 3}, "given as `seeds`"),
        (([IFCA()], "rotated-digits"), {"seeds": []}, "`seeds` must be at least one"),
        ((["ifcaa"], "rotated-digits"), {}, "no algorithm is named ifcaa"),
        (([IFCA()], 5), {}, "`federation` must be a Federation"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        coterie.compare(*arguments, **settings)


def test_two_tables_of_one_name_are_two_federations_each_with_its_own_runs(tmp_path, capsys):
    for name, shops in (("north", 3), ("south", 5)):
        (tmp_path / name).mkdir()
        rows = [f"{i % shops},{'ab'[i % 2]},{i % 7},{i % 2 + i / 90}" for i in range(shops * 12)]
        text = "\n".join(["shop,label,a,b", *rows])
        (tmp_path / name / "data.csv").write_text(text)
    tables = ",".join(str(tmp_path / name / "data.csv") for name in ("north", "south"))
    words = ["compare", "fedavg", tables, "client=shop", "label=label", "rounds=1", "seeds=1"]
    assert cli.main([*words, "--workers", "1", "--out", str(tmp_path / "c")]) == 0
    folders = [path for path in sorted((tmp_path / "c").iterdir()) if path.is_dir()]
    assert len(folders) == 2
    found = {}
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        clients = json.loads((folder / "clients.json").read_text())["clients"]
        found[Path(config["settings"]["path"]).parent.name] = len(clients["cluster"])
    assert found == {"north": 3, "south": 5}
    printed = capsys.readouterr().out
    assert printed.count("fedavg") >= 2
