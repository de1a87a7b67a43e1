import time

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieWarning, DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.client_rows import group_rows
from coterie.data.tables.columns import Column
from coterie.data.tables.encoding import OneHot, fit_one_hot
from coterie.data.tables.labels import TargetScale
from coterie.data.tables.table import Table
from coterie.networks.mlp import Linear
from coterie.tasks.defaults import default_task


def test_features_are_those_worked_out_by_hand(pyarrow, rows):
    got = Table().prepare(pyarrow.table(rows), 0)
    # age: 1, 3, 5 with mean 3 and variance 8/3; weight: 2, ?, 6 with mean 4 and deviation 2;
    # member: 1, 0, 0 with mean 1/3 and variance 2/9.
    age, member = (8 / 3) ** 0.5, (2 / 9) ** 0.5
    expected = [
        [-2 / age, -1, 0, (2 / 3) / member, 0, 1],
        [0, 0, 1, (-1 / 3) / member, 0, 1],
        [2 / age, 1, 0, (-1 / 3) / member, 1, 0],
    ]
    for part in (got.train, got.test):
        assert part.x.dtype == torch.float32
        assert part.x.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
        assert part.y.tolist() == [0, 1, 1]
        assert part.offsets.tolist() == [0, 1, 2, 3]
    assert got.clients == ("a", "b", "c")
    assert got.classes == ("no", "yes")
    assert got.features == (
        "age",
        "weight",
        "weight=(missing)",
        "member",
        "city=Oslo",
        "city=Rome",
    )


def large(n=4000, m=20, seed=0):
    """A table with all kinds of columns; `row` tells rows apart."""
    rng = np.random.default_rng(seed)
    words = np.array(["red", "green", "blue", "gold"])
    return {
        "client": np.sort(rng.integers(0, m, n)),
        "row": np.arange(n, dtype=np.float64),
        "x": np.where(rng.random(n) < 0.1, np.nan, rng.normal(5, 3, n)),
        "colour": words[rng.integers(0, 4, n)],
        "label": rng.integers(0, 3, n),
    }


def taken(table, rows):
    return {name: values[rows] for name, values in table.items()}


def test_rows_in_any_order_give_the_same_clients_with_the_same_rows(pyarrow):
    table = large()
    mixed = taken(table, np.random.default_rng(1).permutation(len(table["row"])))
    settings = Table(standardise=False, features="row,colour")
    one, other = (settings.prepare(rows, 0) for rows in (table, mixed))
    for name in ("clients", "features", "classes"):
        assert getattr(one, name) == getattr(other, name)
    assert torch.equal(one.train.offsets, other.train.offsets)

    def client_rows(federation, i):
        parts = [part.client(i) for part in (federation.train, federation.test)]
        whole = torch.cat([torch.cat([x, y[:, None]], 1) for x, y in parts])
        return whole[whole[:, 0].argsort()]

    for i in range(20):
        assert torch.equal(client_rows(one, i), client_rows(other, i))


def test_standardisation_is_learnt_from_training_rows_only(pyarrow):
    table = large()
    tested = Federation.from_table(table, standardise=False, features="row").test.x[:, 0].long()
    first = Table(features="x,colour").prepare(table, 0)
    table["x"][tested.numpy()] = 1e6
    table["colour"][tested.numpy()] = "grey"
    second = Table(features="x,colour").prepare(table, 0)
    assert second.schema.encoders == first.schema.encoders
    assert torch.equal(second.train.x, first.train.x)
    assert second.test.x[:, 0].min() > 1e4


def test_standardised_training_rows_have_mean_0_and_deviation_1(pyarrow):
    table = large()
    table["x"] = np.random.default_rng(2).normal(5, 3, 4000)
    x = Federation.from_table(table).train.x.double()
    assert x[:, :2].mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert x[:, :2].std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)


def test_words_and_gaps_that_only_the_test_part_has_are_all_zeros(pyarrow):
    table = large()
    table["x"] = np.nan_to_num(table["x"])
    rows = Federation.from_table(table, standardise=False, features="row").test.x[:2, 0].int()
    table["colour"] = table["colour"].astype(object)
    table["colour"][rows[0]], table["colour"][rows[1]] = "grey", None
    table["x"][rows[0]] = np.nan
    got = Table(features="x,colour").prepare(table, 0)
    assert got.features == (
        "x",
        "colour=blue",
        "colour=gold",
        "colour=green",
        "colour=red",
    )
    assert got.test.x[0].tolist() == pytest.approx([0] * 5, abs=1e-6)
    assert got.test.x[1, 1:].tolist() == [0] * 4


def test_rare_words_share_a_feature(pyarrow):
    words = (["c"] * 6 + ["a"] * 4 + ["b"] * 2 + ["rare"]) * 20
    rows = {"client": [0] * 130 + [1] * 130, "label": [0, 1] * 130, "word": words}
    got = Table(categories=2).prepare(rows, 0)
    assert got.features == ("word=a", "word=c", "word=(other)")
    whole = torch.cat([got.train.x, got.test.x])
    assert whole.sum(0).tolist() == [80, 120, 60]
    assert whole.sum(1).unique().tolist() == [1]


@pytest.mark.parametrize("words", [("a", "b", "c"), ("b", "a", "c")])
def test_words_that_are_equally_frequent_go_by_name(words):
    column = Column("word", "text", np.array([]), words)
    encoder = fit_one_hot(column, np.array([2, 2, 3, 0]), 2)
    assert encoder == OneHot("word", ("a", "c"), other=True, missing=False)


def test_a_clients_rows_keep_the_order_of_the_table():
    owner = np.random.default_rng(0).integers(0, 3, 1000)
    clients = group_rows(Column("client", "text", owner, ("a", "b", "c")))
    for i in range(3):
        mine = clients.rows[clients.offsets[i] : clients.offsets[i + 1]]
        assert mine.tolist() == np.flatnonzero(owner == i).tolist()


def test_a_missing_word_is_a_word_of_its_own(pyarrow):
    rows = {"client": [1] * 3 + [2] * 3, "label": [0, 1] * 3, "word": ["a"] * 3 + [None] * 3}
    got = Table().prepare(rows, 0)
    assert got.features == ("word=a", "word=(missing)")
    assert got.train.x.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_names_of_rows_tell_only_whether_there_is_one(pyarrow):
    rows = {"client": [1] * 3 + [2] * 3, "label": [0, 1] * 3, "id": ["u", "v", "w"] + [None] * 3}
    got = Table().prepare(rows, 0)
    assert got.features == ("id=(missing)",)
    assert got.train.x.tolist() == [[0], [0], [1], [1]]


def test_columns_that_tell_nothing_are_left_out_with_a_warning(pyarrow, rows):
    rows |= {"one": [7] * 6, "same": ["s"] * 6, "none": [None] * 6, "id": list("uvwxyz")}
    sentence = r"columns left out: one, same, none \(constant\); id \(a different text in every row"
    with pytest.warns(CoterieWarning, match=sentence):
        got = Table().prepare(rows, 0)
    assert not {"one", "same", "none", "id"} & {name.split("=")[0] for name in got.features}


def test_a_column_of_numbers_with_words_among_them_is_warned_of(pyarrow):
    values = [*map(str, range(39)), "unknown"]
    table = pyarrow.table({"client": [0, 1] * 20, "label": [0, 1, 1, 0] * 10, "x": values})
    table = table.append_column("y", pyarrow.array(range(40)))
    with pytest.warns(CoterieWarning) as caught:
        Federation.from_table(table)
    sentence = "`x` is taken for text, though 98% of its values are numbers; others are such as"
    assert any(sentence in str(warning.message) for warning in caught)


def test_small_clients_are_left_out_with_a_warning_and_their_labels_too(pyarrow, rows):
    expected = Federation.from_table(rows).train
    # Its name comes first among the clients, and its label first among the classes.
    tiny = {"client": "A", "city": "Rome", "label": "A", "age": 9, "weight": 9.0, "member": True}
    rows = {name: [*values, tiny[name]] for name, values in rows.items()}
    sentence = "1 of 4 clients are left out, with 1 rows in all: they have fewer than `min_sam"
    with pytest.warns(CoterieWarning, match=sentence):
        got = Table().prepare(rows, 0)
    assert got.clients == ("a", "b", "c")
    assert got.classes == ("no", "yes")
    assert torch.equal(got.train.x, expected.x)
    assert torch.equal(got.train.y, expected.y)
    assert got.outputs == 2


@pytest.mark.parametrize(
    ("values", "target", "expected", "classes"),
    [
        (["b", "b", "a", "a"], "auto", [1, 0], ("a", "b")),
        ([10, 10, 9, 9], "auto", [1, 0], ("9", "10")),
        (["10", "10", "9", "9"], "auto", [1, 0], ("9", "10")),
        ([True, True, False, False], "auto", [1, 0], ("false", "true")),
        ([0.5, 0.5, 2.5, 2.5], "auto", [0.5, 2.5], ()),
        ([3, 3, 8, 8], "regression", [3.0, 8.0], ()),
        ([1.0, 1.0, 0.0, 0.0], "classification", [1, 0], ("0", "1")),
    ],
)
def test_labels_are_classes_or_targets(pyarrow, values, target, expected, classes):
    rows = {"client": [1, 1, 2, 2], "x": [1, 1, 2, 2], "label": values}
    got = Table(target=target, scale_target=False).prepare(rows, 0)
    assert got.train.y.tolist() == expected
    assert got.classes == classes
    kind = torch.int64 if classes else torch.float32
    assert got.train.y.dtype == kind


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e4])
def test_targets_are_scaled_by_training_rows(pyarrow, unit):
    table = large()
    table["label"] = (table["row"] + 7000) * unit
    table["x"] = table["row"]
    got = Table(features="x", standardise=False).prepare(table, 0)
    y, target = got.train.y.double(), got.schema.target
    assert y.mean().item() == pytest.approx(0, abs=1e-6)
    assert y.std(correction=0).item() == pytest.approx(1)
    assert target.centre == pytest.approx((got.train.x.mean().item() + 7000) * unit)
    for part in (got.train, got.test):
        back = got.schema.decode(part.y)
        np.testing.assert_allclose(back, (part.x[:, 0].numpy() + 7000) * unit, rtol=1e-5)
    task = default_task(got, Linear())
    assert (task.target, task.double().target) == (target, target)


def test_targets_that_are_alike_in_training_keep_their_unit(pyarrow):
    table = {"client": [0, 0, 1, 1], "x": [1.0, 2.0, 3.0, 4.0], "label": [4.0, 4.0, 4.0, 4.5]}
    seeds = [Federation.from_table(table, train_share=0.5, seed=seed) for seed in range(8)]
    alike = [each for each in seeds if each.schema.target.centre == 4]
    assert alike
    for each in alike:
        assert each.schema.target == TargetScale(4.0, 1.0)
        assert sorted(each.test.y.tolist()) == [0, 0.5]


def test_a_dictionary_of_labels_gives_no_class_to_words_that_no_row_has(pyarrow):
    codes = pyarrow.array([2, 2, 0, 0], "int8")
    labels = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["z", "unused", "a"]))
    got = Table().prepare({"client": [1, 1, 2, 2], "x": [1, 1, 2, 2], "label": labels}, 0)
    assert got.classes == ("a", "z")
    assert got.train.y.tolist() == [0, 1]


def test_a_dictionary_with_a_word_twice_counts_as_one_word(pyarrow):
    codes = pyarrow.array([0, 0, 1, 1, 2, 2], "int8")
    city = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["Rome", "Rome", "Oslo"]))
    rows = {"client": city, "label": [0, 1] * 3, "x": [1, 2, 3, 4, 5, 6]}
    assert Table().prepare(rows, 0).clients == ("Oslo", "Rome")


def test_whole_labels_of_a_real_type_are_asked_about(pyarrow):
    rows = {"client": [1, 1, 2, 2], "x": [1, 1, 2, 2], "label": [0.0, 0.0, 1.0, 1.0]}
    with pytest.warns(CoterieWarning, match="say target=classification if they are classes"):
        assert Federation.from_table(rows).train.y.is_floating_point()


@pytest.mark.parametrize(
    ("changes", "settings", "error", "sentence"),
    [
        ({"client": ["a", None] * 3}, {}, DataError, "`client` must have no missing values, got 3"),
        ({"client": ["a"] * 6}, {}, DataError, "two clients or more, but every row has client = a"),
        ({"client": [0.5] * 6}, {}, DataError, "`client` must hold names or whole numbers"),
        ({"client": [[1]] * 6}, {}, DataError, "`client` must hold names or whole numbers, got li"),
        (
            {"client": list("abcdef")},
            {},
            DataError,
            "of at least `min_samples` rows, 2, got 0 of 6; the largest has 1",
        ),
        ({"label": [None] * 6}, {}, DataError, "`label` must have no missing values, got 6 in 6"),
        ({"label": [np.nan] * 6}, {}, DataError, "`label` must have no missing values, got 6 in 6"),
        ({"label": [np.inf] * 6}, {}, DataError, "label column `label` must hold finite numbers"),
        ({"label": ["a"] * 6}, {}, DataError, "two classes or more, but every row has label = a"),
        ({"label": [2.5] * 6}, {}, DataError, "targets that differ, but every row has label = 2.5"),
        ({}, {"target": "regression"}, DataError, "`label` must hold numbers for regression"),
        (
            {"label": [0.5, 1, 2] * 2},
            {"target": "classification"},
            DataError,
            "names or whole numbers for classification",
        ),
        ({"age": [np.inf] + [1.0] * 5}, {}, DataError, "`age` must hold finite numbers .* 1 of 6"),
        ({"age": [1e39] + [1.0] * 5}, {}, DataError, "`age` must hold finite numbers below 3.4e38"),
        ({"age": [[1]] * 6}, {}, DataError, "`age` is of type list<.*, of which no feature or la"),
        ({"age": [1] * 6}, {"features": "age"}, SettingError, r"got age \(constant\)"),
        ({}, {"features": "agee"}, SettingError, "no column named `agee`; did you mean `age`"),
        ({}, {"features": "age,label"}, SettingError, "must not name the client or the label"),
        ({}, {"features": "age,age"}, SettingError, "must name a column once, got age,age"),
        ({}, {"label": "client"}, SettingError, "must be two columns, got client for both"),
        ({}, {"target": "regresion"}, SettingError, "`target` of Table must be one of auto, clas"),
        ({}, {"train_share": 1.0}, SettingError, "`train_share` of Table must lie between 0 and 1"),
        ({}, {"min_samples": 1}, SettingError, "`min_samples` of Table must be at least 2, got 1"),
        ({}, {"categories": 0}, SettingError, "`categories` of Table must be at least 1, got 0"),
    ],
)
def test_tables_that_no_model_could_learn_from_are_refused(
    pyarrow, rows, changes, settings, error, sentence
):
    with pytest.raises(error, match=sentence):
        Federation.from_table(rows | changes, **settings)


def whole_labels(labels):
    return {"client": [0, 1] * (len(labels) // 2), "x": range(len(labels)), "label": labels}


@pytest.mark.parametrize(
    "labels", [range(300), [18 + i % 70 for i in range(900)], [i % 14 for i in range(30)]]
)
def test_whole_labels_of_many_kinds_are_targets_which_is_said(pyarrow, labels):
    rows = whole_labels(list(labels))
    kinds = len(set(labels))
    with pytest.warns(CoterieWarning, match=f"{kinds} different whole .* for a regression: say"):
        assert Federation.from_table(rows).train.y.is_floating_point()
    assert Federation.from_table(rows, target="regression").train.y.is_floating_point()
    assert Federation.from_table(rows, target="classification").outputs == kinds


def test_many_whole_labels_that_number_classes_are_classes_which_is_said(pyarrow):
    rows = whole_labels([i % 62 for i in range(620)])
    with pytest.warns(CoterieWarning, match="62 different whole numbers .* say target=regression"):
        assert Federation.from_table(rows).outputs == 62


def test_a_few_whole_labels_that_come_again_are_classes(pyarrow):
    assert Federation.from_table(whole_labels([3 * (i % 20) for i in range(80)])).outputs == 20


def test_rows_without_a_label_are_left_out_and_counted(pyarrow):
    table = large()
    known = np.random.default_rng(3).random(4000) < 0.7
    words = np.where(known, table["label"].astype(str), None)
    sentence = f"{int((~known).sum()):,} of 4,000 rows have no label in the column `label`"
    with pytest.warns(CoterieWarning, match=sentence):
        some = Federation.from_table({**table, "label": words}, features="row,colour")
    whole = Federation.from_table(
        {**taken(table, known), "label": table["label"][known].astype(str)}, features="row,colour"
    )
    assert torch.equal(some.train.x, whole.train.x)
    assert torch.equal(some.test.y, whole.test.y)


def test_whole_labels_with_gaps_are_classes_though_pandas_made_them_real(pyarrow):
    import pandas

    rows = pandas.DataFrame(whole_labels([0, 1, None, 1, 0, 0, 1, 1] * 5))
    assert rows["label"].dtype == float
    with pytest.warns(CoterieWarning, match="5 of 40 rows have no label"):
        assert Federation.from_table(rows).classes == ("0", "1")


def test_a_client_without_labels_is_left_out(pyarrow):
    rows = {"client": [0, 0, 1, 1, 2, 2], "x": range(6), "label": [0, 1, 0, 1, None, None]}
    with pytest.warns(CoterieWarning) as found:
        assert Federation.from_table(rows).clients == ("0", "1")
    assert [str(each.message)[:20] for each in found] == [
        "2 of 6 rows have no ",
        "1 of 3 clients are l",
    ]


def test_the_seed_splits_the_rows(pyarrow):
    table = large()
    one, again, other = (Federation.from_table(table, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    sizes = one.train.sizes + one.test.sizes
    assert one.train.sizes.tolist() == [int(size * 0.8) for size in sizes.tolist()]


def test_thousands_of_clients_take_seconds(pyarrow):
    begin = time.perf_counter()
    federation = Federation.from_table(large(200_000, 5_000))
    assert len(federation) == 5_000
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize("label", ["label", ""])
def test_a_table_without_a_label_has_samples_only(pyarrow, rows, label):
    labelled = Federation.from_table(rows)
    del rows["label"]
    federation = Federation.from_table(rows, label=label)
    assert labelled.labelled
    assert not federation.labelled
    assert torch.equal(federation.train.x, labelled.train.x)
    assert torch.equal(federation.test.x, labelled.test.x)
    assert federation.features == labelled.features
    assert not federation.train.has_labels
    assert federation.classes == ()
    assert federation.train.y.unique().tolist() == [0]


def test_a_label_that_is_named_must_be_there(pyarrow, rows):
    rows["outcome"] = rows.pop("label")
    assert Federation.from_table(rows, label="outcome").classes == ("no", "yes")
    with pytest.raises(SettingError, match="no column named `outcom`; did you mean `outcome`"):
        Federation.from_table(rows, label="outcom")


def test_an_empty_label_leaves_the_column_of_that_name_to_the_features(pyarrow, rows):
    federation = Federation.from_table(rows, label="")
    assert not federation.labelled
    assert federation.features[-2:] == ("label=no", "label=yes")
    assert Federation.from_table(rows, label="", features="label").train.x.shape[1] == 2


def test_of_a_parquet_file_the_label_is_read_if_it_is_there(pyarrow, rows, tmp_path):
    from pyarrow import parquet

    for name in ("with", "without"):
        parquet.write_table(pyarrow.table(rows), tmp_path / f"{name}.parquet")
        rows.pop("label", None)
    assert Federation.from_table(tmp_path / "with.parquet", features="age").labelled
    assert not Federation.from_table(tmp_path / "without.parquet", features="age").labelled
    with pytest.raises(SettingError, match="no column named `ward`"):
        Federation.from_table(tmp_path / "with.parquet", features="age", label="ward")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"client": list("aaaaaa")}, "needs two clients or more, but every row has client = a"),
        (
            {"age": [1] * 6, "weight": [None] * 6, "member": [True] * 6, "city": ["Rome"] * 6},
            r"column of features besides `client`, got age, weight, member, city \(constant\)",
        ),
        ({"age": [np.inf] + [1.0] * 5}, "`age` must hold finite numbers"),
    ],
)
def test_a_table_without_a_label_is_refused_as_one_with_a_label_is(
    pyarrow, rows, changes, sentence
):
    del rows["label"]
    with pytest.raises((DataError, SettingError), match=sentence):
        Federation.from_table(rows | changes)
