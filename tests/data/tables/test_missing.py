import json

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.data.tables.schema import Schema

ROWS = {
    "client": [0, 1] * 6,
    "label": ["a", "b", "b", "a"] * 3,
    "age": ["30", "40", "?", "50.5", " ? ", "60"] * 2,
    "ward": ["east", "unknown", "west", "?", "east", "west"] * 2,
    "code": [7, -9, 3, 4, 5, -9] * 2,
}


def test_what_means_missing_is_missing(pyarrow):
    data = Federation.from_table(ROWS, missing="?, unknown,-9", train_share=0.5)
    assert set(data.features) == {
        *("age", "age=(missing)", "ward=east", "ward=west", "ward=(missing)"),
        *("code", "code=(missing)"),
    }
    x = data.schema.encode({name: values[:3] for name, values in ROWS.items()})
    found = {name: x[:, i].tolist() for i, name in enumerate(data.features)}
    height = max(found["age=(missing)"])
    assert [round(v / height) for v in found["age=(missing)"]] == [0, 0, 1]
    assert [round(v / height) for v in found["code=(missing)"]] == [0, 1, 0]
    assert [round(v / height) for v in found["ward=(missing)"]] == [0, 1, 0]


def test_the_schema_keeps_what_means_missing(pyarrow):
    schema = Federation.from_table(ROWS, missing="?,unknown,-9", train_share=0.5).schema
    again = Schema.of(json.loads(json.dumps(schema.raw())))
    assert again == schema
    one = {name: [values[2]] for name, values in ROWS.items()}
    plain = one | {"age": [None]}
    np.testing.assert_array_equal(again.encode(one), schema.encode(plain))


def test_numbers_may_be_categories(pyarrow):
    rows = {name: list(values) * 3 for name, values in ROWS.items()} | {"age": range(36)}
    data = Federation.from_table(rows, categorical="code", missing="-9")
    own = [name for name in data.features if name.startswith("code")]
    assert own == ["code=3", "code=4", "code=5", "code=7", "code=(missing)"]
    assert data.schema.text_columns == ["ward", "code"]


@pytest.mark.parametrize("spelt", ["?", "NA"])
def test_a_csv_file_is_read_alike(pyarrow, tmp_path, spelt):
    lines = [
        "client,label,age",
        *(f"{i % 2},{'ab'[i % 2]},{i if i % 5 else spelt}" for i in range(20)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = Federation.from_table(tmp_path / "rows.csv", missing="?")
    assert data.features == ("age", "age=(missing)")
