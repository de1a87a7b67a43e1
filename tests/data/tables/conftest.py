import pytest

ROWS = {
    # Both rows of a client are the same, so the training rows are known whatever the split.
    "client": ["a", "a", "b", "b", "c", "c"],
    "age": [1, 1, 3, 3, 5, 5],
    "weight": [2.0, 2.0, None, None, 6.0, 6.0],
    "member": [True, True, False, False, False, False],
    "city": ["Rome", "Rome", "Rome", "Rome", "Oslo", "Oslo"],
    "label": ["no", "no", "yes", "yes", "yes", "yes"],
}


@pytest.fixture
def rows():
    """A small table of three clients, as columns."""
    return {name: list(values) for name, values in ROWS.items()}


@pytest.fixture
def pyarrow():
    """pyarrow, which takes a while to import."""
    import pyarrow

    return pyarrow
