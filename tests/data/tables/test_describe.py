import numpy as np
import pytest

from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.describe import describe_federation_data, describe_source
from coterie.data.tables.table import Table
from tests.tasks.taggers import tagging_federation, two_input_federation


def describe(source, **settings):
    return describe_source(Table(**settings), source)


def healthy(n=600, m=6):
    rng = np.random.default_rng(0)
    return {
        "client": np.repeat(np.arange(m), n // m),
        "age": rng.normal(40, 10, n),
        "city": np.array(["Rome", "Oslo", "Bern"])[rng.integers(0, 3, n)],
        "label": rng.integers(0, 2, n),
    }


def doubts(text):
    """The sentences under `what looks wrong`."""
    return text.split("what looks wrong\n")[1].splitlines()


def test_a_healthy_table_has_nothing_wrong(pyarrow):
    text = describe(healthy())
    assert text.startswith("the table: 6 clients, 600 rows, columns of features: 2")
    assert "rows of a client: 100 to 100, median 100" in text
    assert "label `label`: classification, 2 classes" in text
    assert "city  text     3 different" in text
    assert "age   number   mean 39.77" in text
    assert doubts(text) == ["  nothing"]


def test_a_description_of_a_small_table_to_the_letter(pyarrow, rows, tmp_path):
    from pyarrow import csv

    rows["when"] = ["2020-01-01", "2020-01-02"] * 3
    csv.write_csv(pyarrow.table(rows), tmp_path / "rows.csv")
    assert describe(tmp_path / "rows.csv") == (
        "rows.csv: 3 clients, 6 rows, columns of features: 5\n"
        "\n"
        "rows of a client: 2 to 2, median 2\n"
        "  2  ##############################  3\n"
        "\n"
        "label `label`: classification, 2 classes\n"
        "  yes   66.7%\n"
        "  no    33.3%\n"
        "  a client's shares are 0.44 away from these on average "
        "(0: all alike, 1: nothing in common)\n"
        "  clients with one class only: 3\n"
        "\n"
        "features\n"
        "  age     whole    mean 3, standard deviation 1.633\n"
        "  weight  whole    mean 4, standard deviation 2, 33.3% missing\n"
        "  member  bool     33.3% true\n"
        "  city    text     2 different\n"
        "  when    date     2020-01-01 to 2020-01-02\n"
        "\n"
        "what looks wrong\n"
        "  - 3 clients have fewer than 10 rows, too few to test on\n"
        "  - labels that one client only has: no\n"
        "  - column `age` tells who the client is: each of its values is of one client\n"
        "  - column `weight` is the label `label` under another name\n"
        "  - column `member` is the label `label` under another name"
    )


@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    [
        ("c", lambda t: np.full(600, 3), "`c` is constant and is left out"),
        ("c", lambda t: [None] * 600, "`c` is constant and is left out"),
        ("c", lambda t: np.arange(600), "`c` is different in every row, as an identifier is"),
        ("c", lambda t: np.arange(600).astype(str), "as an identifier is and is left out"),
        (
            "c",
            lambda t: [*map(str, range(540)), *["unknown"] * 60],
            "`c` is taken for text, though 90% of its values are numbers; others are such as `unkn",
        ),
        (
            "c",
            lambda t: [f"{i},5" for i in range(300)] * 2,
            "`c` is taken for text, though 100% of its values are numbers",
        ),
        ("c", lambda t: [1.5, None, None] * 200, "`c` is missing in 67% of the rows"),
        ("c", lambda t: [np.inf] + [0.5, 1.5, 2.5] * 199 + [1.0, 2.0], "infinite or beyond 3.4e38"),
        ("c", lambda t: 10 - t["label"], "`c` is the label `label` under another name"),
        ("label", lambda t: np.exp(t["age"] / 40), "`age` is the label `label` under another name"),
        ("c", lambda t: 3 * t["label"] + t["client"] % 3, "`c` gives the label away"),
        ("c", lambda t: t["client"] * 7 + 100, "`c` tells who the client is"),
        ("label", lambda t: np.where(t["age"] == t["age"][0], 7, t["label"]), "only has: 7"),
        ("label", lambda t: t["label"] * 1.0, "say target=classification if they are classes"),
        ("client", lambda t: np.r_[np.full(5, 9), t["client"][5:]], "1 clients have fewer than 10"),
        ("client", lambda t: np.r_[9, t["client"][1:]], "1 clients have fewer than 2 rows"),
    ],
)
def test_what_looks_wrong_is_named(pyarrow, name, make, sentence):
    table = healthy()
    table[name] = make(table)
    found = doubts(describe(table))
    assert any(sentence in doubt for doubt in found), found


def test_targets_out_of_scale_look_wrong_where_they_stay_as_they_are(pyarrow):
    table = healthy()
    table["label"] = table["age"] * 1000 + np.arange(600) % 7
    large = "targets `label` are of size 3.98e+04 and are not scaled"
    found = doubts(describe(table, scale_target=False))
    assert any(large in doubt for doubt in found), found
    assert not any("are of size" in doubt for doubt in doubts(describe(table)))


def test_rows_without_a_label_are_counted(pyarrow):
    table = healthy()
    table["label"] = [None if i % 4 == 0 else i % 3 for i in range(600)]
    page = describe(table)
    assert "  - 150 of 600 rows have no label and are left out" in doubts(page)
    assert "6 clients, 450 rows" in page


def test_whole_labels_of_many_kinds_are_asked_about(pyarrow):
    table = healthy()
    table["label"] = np.arange(600) % 90 + 5
    assert any("90 different whole numbers" in doubt for doubt in doubts(describe(table)))


def test_codes_of_few_kinds_are_text_in_order(pyarrow):
    table = healthy()
    table["c"] = [str(i % 20) for i in range(600)]
    assert not any("numbers" in doubt for doubt in doubts(describe(table)))


def test_a_table_without_features_looks_wrong(pyarrow):
    table = healthy()
    found = doubts(describe({name: table[name] for name in ("client", "label")}))
    assert "there is no column of features, which is refused" in found[-1]


def test_continuous_values_are_no_identifiers(pyarrow):
    table = healthy()
    table["label"] = np.random.default_rng(1).normal(size=600)
    assert doubts(describe(table)) == ["  nothing"]


def test_clients_that_differ_in_their_labels_show(pyarrow):
    table = healthy()
    alike = describe(table)
    table["label"] = table["client"] % 2
    assert "0.05 away" in alike
    assert "0.50 away" in describe(table)
    assert "clients with one class only: 6" in describe(table)
    table["label"] = table["client"] + 0.5
    assert "the means of clients make up 100% of its variance" in describe(table)


def test_sizes_that_differ_much_have_bars_that_grow_by_a_factor(pyarrow):
    sizes = [20] * 3 + [10_000]
    n = sum(sizes)
    table = {
        "client": np.repeat(range(4), sizes),
        "x": np.arange(n) / 7,
        "label": [0, 1] * (n // 2),
    }
    lines = describe(table).splitlines()
    assert lines[2] == "rows of a client: 20 to 10,000, median 20"
    assert lines[3].split() == ["20", "to", "55", "#" * 30, "3"]
    assert lines[8].split()[:3] == ["3,549", "to", "10,000"]
    assert lines[8].split()[-1] == "1"


def test_a_folder_of_arrays_is_described_by_its_shapes(tmp_path):
    for name in "ab":
        x, y = np.zeros((20, 8, 8), np.float32), np.arange(20) % 4
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    text = describe(tmp_path)
    assert "2 clients, 40 rows, samples of 8 x 8 float32" in text
    assert "4 classes" in text
    assert doubts(text) == ["  nothing"]


def test_a_table_without_a_label_is_described_without_one(pyarrow, rows):
    del rows["label"]
    page = describe(rows)
    assert "no label: samples can be clustered, nothing can be predicted" in page
    assert "label `" not in page
    assert "column `age` tells who the client is" in page
    assert describe(rows, label="") == page
    built = describe_federation_data(Federation.from_table(rows))
    assert "no label: samples can be clustered" in built
    assert "regression" not in built


@pytest.mark.parametrize(
    ("changes", "settings", "error", "sentence"),
    [
        ({"client": [1] * 600}, {}, DataError, "two clients or more"),
        ({"label": [1] * 600}, {}, DataError, "two classes or more"),
        ({"label": [None] * 600}, {}, DataError, "no missing values, got 600 in 600 rows"),
        ({}, {"client": "cliet"}, SettingError, "did you mean `client`"),
        ({}, {"label": "labell"}, SettingError, "did you mean `label`"),
    ],
)
def test_what_cannot_be_described_is_refused(pyarrow, changes, settings, error, sentence):
    with pytest.raises(error, match=sentence):
        describe(healthy() | changes, **settings)


def test_settings_as_the_command_line_has_them_are_described(pyarrow, tmp_path):
    from pyarrow import feather

    feather.write_feather(pyarrow.table(healthy()), tmp_path / "rows.feather")
    settings = Table(path=str(tmp_path / "rows.feather"), features="age")
    assert describe_source(settings) == describe(tmp_path / "rows.feather", features="age")
    assert describe_source(settings).startswith(
        "rows.feather: 6 clients, 600 rows, columns of features: 1"
    )


def test_a_federation_of_sequences_or_several_inputs_is_described_too():
    page = describe_federation_data(tagging_federation([3, 5]))
    assert "2 clients, 16 samples of sequences of int64" in page
    assert "8 of them are there to test on" in page
    page = describe_federation_data(two_input_federation([3, 5]))
    assert "2 clients, 8 samples of image: 6 x 6 uint8, vector: 5 float64" in page
    assert "true clusters have these numbers of clients: 1 1" in page
