import json
from datetime import date

import numpy as np
import pytest
import torch

from coterie.core.errors import CheckpointError, DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.schema import Schema, read_schema

ROWS = {
    "client": ["a", "a", "a", "b", "b", "b"] * 4,
    "age": [31.0, 42.0, None, 53.0, 64.0, 75.0] * 4,
    "height": [1, 2, 3, 4, 5, 6] * 4,
    "ward": ["east", "west", "north", "east", "west", "east"] * 4,
    "smokes": [True, False, True, False, True, False] * 4,
    "code": ["1", "2", "x", "1", "2", "1"] * 4,
    "label": ["ill", "well"] * 12,
}
SPELT = [("1", "3"), ("1.0", "3.0"), ("1.5", "no"), ("x", "3.00")]


def federation(**settings):
    return Federation.from_table({name: list(v) for name, v in ROWS.items()}, **settings)


def without_label():
    return {name: values for name, values in ROWS.items() if name not in ("client", "label")}


def one_row(**changed):
    return {name: [values[0]] for name, values in without_label().items()} | {
        name: [value] for name, value in changed.items()
    }


def features_of(data, column):
    return [i for i, name in enumerate(data.features) if name.partition("=")[0] == column]


def test_rows_of_the_table_are_encoded_as_the_federation_has_them():
    data = federation(train_share=0.5)
    x = data.schema.encode(without_label())
    names = np.array(ROWS["client"])
    for i, name in enumerate(data.clients):
        own = torch.cat([data.train.client(i)[0], data.test.client(i)[0]])
        mine = x[torch.from_numpy(np.flatnonzero(names == name))]
        assert sorted(own.tolist()) == sorted(mine.tolist())


def test_a_schema_is_the_same_after_the_file(tmp_path):
    schema = federation(categories=1).schema
    (tmp_path / "schema.json").write_text(json.dumps(schema.raw()))
    again = read_schema(tmp_path / "schema.json")
    assert again == schema
    assert torch.equal(again.encode(without_label()), schema.encode(without_label()))
    assert json.loads((tmp_path / "schema.json").read_text())["features"] == list(again.features)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"version": 2}', "version 2"),
        ('{"version": 1}', "damaged"),
        ("[]", "damaged"),
        ("{", "cannot be read"),
        ('{"encoders": [{"kind": "Odd"}]}', "damaged"),
    ],
)
def test_a_schema_that_is_damaged_or_newer_is_refused(tmp_path, text, says):
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(CheckpointError, match=says):
        read_schema(tmp_path / "schema.json")


def test_a_file_of_any_kind_and_order_is_the_table(tmp_path, pyarrow):
    from pyarrow import csv, parquet

    schema, table = federation().schema, pyarrow.table(without_label())
    expected = schema.encode(table)
    mixed = table.select(table.column_names[::-1]).append_column("other", table["age"])
    csv.write_csv(mixed, tmp_path / "new.csv")
    parquet.write_table(mixed, tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        assert torch.equal(schema.encode(tmp_path / name), expected)


@pytest.mark.parametrize("row", range(6))
def test_one_row_by_itself_is_as_among_the_others(tmp_path, pyarrow, row):
    from pyarrow import csv

    schema, table = federation().schema, pyarrow.table(without_label())
    expected = schema.encode(table)[row : row + 1]
    assert torch.equal(schema.encode(table.slice(row, 1)), expected)
    # Its `code` reads as a number there, and an empty `age` as nothing.
    csv.write_csv(table.slice(row, 1), tmp_path / "row.csv")
    assert torch.equal(schema.encode(tmp_path / "row.csv"), expected)


def test_numbers_and_their_text_are_one():
    schema = federation().schema
    expected = schema.encode(one_row())
    assert torch.equal(schema.encode(one_row(age="31", code=1)), expected)
    assert torch.equal(schema.encode(one_row(age="31.0", code=1.0, smokes=1)), expected)


def test_new_categories_are_zeros_or_go_with_the_rare_ones():
    data = federation()
    x = data.schema.encode(one_row(ward="south"))
    assert x[0, features_of(data, "ward")].tolist() == [0, 0, 0]
    data = federation(categories=2)
    assert [data.features[i] for i in features_of(data, "ward")][-1] == "ward=(other)"
    x = data.schema.encode(one_row(ward="south"))
    assert x[0, features_of(data, "ward")].tolist() == [0, 0, 1]


def test_a_missing_number_is_the_mean_of_training():
    data = federation()
    x = data.schema.encode(one_row(age=None, height=None))
    age, height = features_of(data, "age"), features_of(data, "height")
    assert x[0, age].tolist() == pytest.approx([0, 1], abs=1e-6)
    assert x[0, height].tolist() == pytest.approx([0], abs=1e-6)


def test_a_missing_column_is_named():
    rows = one_row()
    del rows["ward"]
    with pytest.raises(SettingError, match="no column named `ward`"):
        federation().schema.encode(rows)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"age": "aged"}, r"`age` must hold numbers, got text in 1 of 1 rows"),
        ({"age": date(2020, 1, 1)}, "`age` must hold numbers, as in training"),
        ({"age": float("inf")}, "`age` must hold finite numbers"),
    ],
)
def test_values_of_another_kind_are_refused_without_being_told(changed, says):
    with pytest.raises(DataError, match=says) as error:
        federation().schema.encode(one_row(**changed))
    assert "aged" not in str(error.value)


def test_dates_are_days_in_new_rows_too():
    days = np.arange("2020-01-01", "2020-01-25", dtype="datetime64[D]")
    rows = {"client": [0, 1] * 12, "label": [0, 1] * 12, "day": days}
    schema = Federation.from_table(rows, standardise=False).schema
    assert schema.encode({"day": days[:1].astype("datetime64[s]")}).tolist() == [[18262]]
    with pytest.raises(DataError, match="`day` must hold dates or times"):
        schema.encode({"day": [3]})


def test_outputs_are_decoded():
    schema = federation().schema
    assert schema.decode([1, 0]).tolist() == ["well", "ill"]
    rows = {"client": [0, 1] * 5, "label": [1.5e6, 2e6, 3e6, 4e6, 5.5] * 2, "x": range(10)}
    data = Federation.from_table(rows)
    found = {*data.schema.decode(data.train.y).tolist(), *data.schema.decode(data.test.y).tolist()}
    assert sorted(found) == pytest.approx([5.5, 1.5e6, 2e6, 3e6, 4e6], abs=1)


def test_arrays_are_taken_as_they_are(tmp_path):
    for name in "ab":
        x, y = np.ones((4, 2, 3)), np.array([0, 1, 0, 1])
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    schema = Schema.of(Federation.from_folder(tmp_path).schema.raw())
    assert schema.encode(np.ones((1, 2, 3))).dtype == torch.float32
    with pytest.raises(DataError, match=r"shape \[2, 3\], as in training, got \[3\]"):
        schema.encode(np.ones((1, 3)))


def test_a_number_written_in_two_ways_is_one_category(tmp_path):
    lines = ["client,code,label", *(f"{c},{k},{y}" for c in ("1", "1.0", "2") for k, y in SPELT)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    data = Federation.from_table(tmp_path / "rows.csv")
    assert data.clients == ("1", "2")
    assert data.features == ("code=1", "code=1.5", "code=x")
    assert data.classes == ("3", "no")
