import numpy as np
import pytest
import torch

from coterie.core.errors import DataError
from coterie.data.federation import Federation
from coterie.data.tables.known_schema import new_federation, node_federation
from coterie.data.tables.table import Table

ROWS = {
    "client": ["a", "a", "b", "b", "c", "c"] * 3,
    "x": np.arange(18.0),
    "colour": ["red", "blue", "red"] * 6,
    "label": ["no", "yes", "yes"] * 6,
}


@pytest.fixture
def csv(tmp_path, pyarrow):
    """The path of a table of these columns."""
    from pyarrow import csv

    def write(columns):
        path = tmp_path / "rows.csv"
        csv.write_csv(pyarrow.table(columns), path)
        return str(path)

    return write


def test_a_node_reads_its_table_as_all_do(csv):
    whole = Federation.from_table(ROWS)
    own = node_federation(whole.schema, Table(path=csv(ROWS)), 0)
    assert torch.equal(own.train.x, whole.train.x)
    assert torch.equal(own.test.y, whole.test.y)
    assert (own.clients, own.schema) == (whole.clients, whole.schema)


def test_a_node_with_numbers_for_categories_does_not_fit(csv):
    schema = Federation.from_table(ROWS).schema
    path = csv({**ROWS, "colour": [1] * 18})
    with pytest.raises(DataError, match="`colour` must hold text"):
        node_federation(schema, Table(path=path), 0)


@pytest.mark.parametrize("rows", [1, 7])
def test_all_new_rows_are_there_to_choose_by(rows):
    schema = Federation.from_table(ROWS).schema
    new = {name: values[:rows] for name, values in ROWS.items()}
    got = new_federation(schema, new)
    assert got.test is None
    order = np.argsort(new["client"], kind="stable")
    assert torch.equal(got.train.x, schema.encode(new)[order])
    assert schema.decode(got.train.y).tolist() == [new["label"][i] for i in order]
    assert got.labelled


def test_new_rows_without_a_label_are_not_labelled():
    schema = Federation.from_table(ROWS).schema
    new = {name: values for name, values in ROWS.items() if name != "label"}
    assert not new_federation(schema, new).labelled
    assert not new_federation(schema, {**new, "label": [None] * 18}).labelled


def test_an_unknown_class_is_counted_and_not_told():
    schema = Federation.from_table(ROWS).schema
    new = {**ROWS, "label": ["maybe", *ROWS["label"][1:]]}
    with pytest.raises(DataError, match=r"in 1 of 18 rows \(it had no, yes\)") as error:
        new_federation(schema, new)
    assert "maybe" not in str(error.value)
