"""What scikit-learn's users hand an estimator, as tables that coterie reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    column_or_1d,
    validate_data,
)

from coterie.core.errors import CoterieError
from coterie.data.tables.columns import Column
from coterie.data.tables.read import import_arrow, table_from_object
from coterie.prediction.new_rows import NOBODY, named_clients

FEWEST_ROWS = 2


def read_features(estimator: Any, X: Any, y: Any = None) -> Any:
    """The features of X as an Arrow table; when an estimator is fitted to `y`, both.

    Names and numbers of features are kept by the estimator, and must be the same ever after.
    """
    fitting = y is not None or not hasattr(estimator, "n_features_in_")
    frame = as_pandas(X)
    if frame is None:
        options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if not fitting:
            x = validate_data(estimator, X, reset=False, **options)
            return array_table(x)
        numeric = estimator.target == "regression"
        least = {"ensure_min_samples": FEWEST_ROWS, "y_numeric": numeric}
        x, y = validate_data(estimator, X, y, **options, **least)
        return array_table(x), y
    validate_data(estimator, frame, skip_check_array=True, reset=fitting)
    if fitting and y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but it is None")
    if frame.shape[1] == 0:
        raise ValueError(f"0 feature(s) (shape={frame.shape}) while a minimum of 1 is required.")
    try:
        table = table_from_object(frame.set_axis(list(map(str, frame.columns)), axis=1))
    except CoterieError as error:
        raise ValueError(str(error)) from error
    if not fitting:
        return table
    if table.num_rows < FEWEST_ROWS:
        raise ValueError(f"{FEWEST_ROWS} rows or more are needed, got {table.num_rows} sample(s)")
    check_consistent_length(frame, y)
    return table, y


def as_pandas(X: Any) -> Any:
    """A frame of any library as one of pandas; None of what is no frame, or has no names.

    A frame of numbers whose columns have no text for names is an array to scikit-learn.
    """
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        named = any(isinstance(name, str) for name in X.columns)
        return X if named else None
    if isinstance(X, np.ndarray | list | tuple) or not hasattr(X, "__arrow_c_stream__"):
        return None
    return table_from_object(X).to_pandas()


def array_table(x: NDArray[Any]) -> Any:
    """Numbers [n, d] as a table with columns x0, x1, ..."""
    return import_arrow().table({f"x{j}": np.ascontiguousarray(x[:, j]) for j in range(x.shape[1])})


def check_targets(estimator: Any, y: Any) -> NDArray[Any]:
    """Targets as one column [n] without gaps."""
    column: NDArray[Any] = column_or_1d(y, warn=True)
    if column.dtype.kind in "fc":
        assert_all_finite(column, input_name="y", estimator_name=type(estimator).__name__)
    elif column.dtype == object and any(value is None or value != value for value in column):
        raise ValueError("Input y contains NaN.")
    return column


def read_clients_of(client: Any, count: int) -> Column:
    """Whose each of `count` rows is; None: all of one client that has no name."""
    if client is None:
        return Column("client", "text", np.zeros(count, np.int64), (NOBODY,))
    try:
        column = named_clients(list(client))
    except CoterieError as error:
        raise ValueError(str(error)) from error
    if len(column.values) != count:
        raise ValueError(
            f"`client` must name the client of each row: there are {count} rows and "
            f"{len(column.values)} names"
        )
    return column


def free_name(name: str, taken: list[str]) -> str:
    """A name for a column that no other has.

    >>> free_name("client", ["age", "client"])
    'client_'
    """
    while name in taken:
        name += "_"
    return name


def add_columns(table: Any, columns: dict[str, Any]) -> Any:
    """A table with more columns: arrays, or columns of text."""
    pyarrow = import_arrow()
    for name, values in columns.items():
        if isinstance(values, Column):
            index = pyarrow.array(values.values, "int32")
            values = pyarrow.DictionaryArray.from_arrays(index, pyarrow.array(values.categories))
        table = table.append_column(name, pyarrow.chunked_array([pyarrow.array(values)]))
    return table
