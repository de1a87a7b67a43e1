"""One column of a table as numpy arrays, whatever it was stored as."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import DataError
from coterie.data.tables.read import first_line, import_arrow

PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
LARGEST = float(np.finfo(np.float32).max)  # features are float32


@dataclass(frozen=True)
class Column:
    """A column of n values: numbers with NaN for missing ones, or codes of categories with -1."""

    name: str
    kind: str  # number, whole, bool, date or text
    values: NDArray[Any]  # [n] float64; for text the codes, int64
    categories: tuple[str, ...] = ()  # what the codes of text mean, in no order

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where a value is missing, [n]."""
        gone: NDArray[np.bool_] = self.values < 0 if self.kind == "text" else np.isnan(self.values)
        return gone


def read_column(table: Any, name: str) -> Column:
    """A column of an Arrow table.

    Whole and real numbers, booleans and decimals are numbers. Dates, times and durations are
    numbers of days, dates counted from 1 January 1970 in UTC. Text and dictionaries are codes.
    Everything else is refused.
    """
    pyarrow = import_arrow()
    types, column = pyarrow.types, table.column(name)
    kind = column.type
    if types.is_null(kind):
        return Column(name, "number", np.full(len(column), np.nan))
    if types.is_boolean(kind):
        return Column(name, "bool", as_float64(column.cast("uint8")))
    if types.is_integer(kind):
        return Column(name, "whole", as_float64(column))
    if types.is_floating(kind) or types.is_decimal(kind):
        return Column(name, "number", as_float64(column))
    if types.is_temporal(kind) and not types.is_interval(kind):
        count = as_float64(column.cast("int32" if kind.bit_width == 32 else "int64"))
        if types.is_date(kind):
            return Column(name, "date", count / (1 if kind.bit_width == 32 else PER_DAY["ms"]))
        return Column(name, "date", count / PER_DAY[kind.unit])
    if is_text(types, kind):
        return Column(name, "text", *dictionary_codes(column))
    raise DataError(
        f"column `{name}` is of type {str(kind)[:60]}, of which no feature or label can be made; "
        "name the columns to use: features=..."
    )


def array_column(name: str, values: NDArray[Any]) -> Column:
    """A column of a numpy array of numbers, booleans or text."""
    if values.dtype.kind in "US":
        categories, codes = np.unique(values.astype(str), return_inverse=True)
        return Column(name, "text", codes.astype(np.int64), tuple(categories.tolist()))
    kinds = {"b": "bool", "i": "whole", "u": "whole", "f": "number"}
    if values.dtype.kind not in kinds:
        raise DataError(f"`{name}` must hold numbers or text, got {values.dtype}")
    return Column(name, kinds[values.dtype.kind], values.astype(np.float64))


def is_text(types: Any, kind: Any) -> bool:
    views = getattr(types, "is_string_view", lambda _: False)  # younger than the rest of pyarrow
    text: bool = types.is_string(kind) or types.is_large_string(kind) or views(kind)
    return text or bool(types.is_dictionary(kind))


def as_float64(column: Any) -> NDArray[np.float64]:
    """Values as float64 with NaN for null; whole numbers above 2^53 lose their last digits."""
    array: NDArray[np.float64] = column.cast("float64", safe=False).to_numpy()
    return array


def dictionary_codes(column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Codes [n] of a column's values, -1 for null, and the categories they stand for."""
    pyarrow = import_arrow()
    types = pyarrow.types
    if types.is_dictionary(column.type):
        categories = column.unify_dictionaries().chunk(0).dictionary
        distinct = len(categories.unique()) == len(categories)
        if categories.null_count or not distinct:  # codes would not be unique
            column = column.cast(column.type.value_type)
    elif not (types.is_string(column.type) or types.is_integer(column.type)):
        column = column.cast("large_string")
    if not types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    codes = [chunk.indices.cast("int64").fill_null(-1).to_numpy() for chunk in column.chunks]
    categories = column.chunk(0).dictionary.to_pylist()
    return merge_spellings(np.concatenate(codes), list(map(str, categories)))


def client_column(table: Any, name: str) -> Column:
    """The column that says whose row it is: codes of all clients in the order of their names.

    Clients with numbers for names are in the order of the numbers. Missing names are refused, and
    so are real numbers, which name nobody.
    """
    pyarrow = import_arrow()
    if table.column_names.count(name) > 1:
        raise DataError(f"the columns of a table must have different names, got `{name}` twice")
    column = table.column(name)
    if pyarrow.types.is_floating(column.type):
        try:
            column = column.cast("int64")
        except pyarrow.ArrowInvalid as error:
            raise DataError(
                f"the client column `{name}` must hold names or whole numbers: {first_line(error)}"
            ) from error
    try:
        codes, categories = dictionary_codes(column)
    except pyarrow.ArrowException as error:
        raise DataError(
            f"the client column `{name}` must hold names or whole numbers, got {column.type}"
        ) from error
    if (codes < 0).any():
        raise DataError(
            f"the client column `{name}` must have no missing values, got {(codes < 0).sum():,} "
            f"in {len(codes):,} rows"
        )
    used = np.bincount(codes, minlength=len(categories)) > 0
    order = sorted(np.flatnonzero(used).tolist(), key=sort_key(categories))
    place = np.zeros(len(categories), np.int64)
    place[order] = np.arange(len(order))
    return Column(name, "text", place[codes], tuple(categories[i] for i in order))


def sort_key(categories: tuple[str, ...]) -> Any:
    """A key that sorts places in `categories` by number if all are numbers, else as text."""
    if all(category.removeprefix("-").isdecimal() for category in categories):
        return lambda i: (int(categories[i]), categories[i])
    return lambda i: categories[i]


def whole_spelling(text: str) -> str:
    """A whole number as it is written without decimals; all other text as it is.

    >>> whole_spelling("1.0"), whole_spelling("007"), whole_spelling("1.5"), whole_spelling("v1.0")
    ('1', '007', '1.5', 'v1.0')
    """
    whole, _, rest = text.partition(".")
    return whole if rest and not rest.strip("0") and whole.removeprefix("-").isdecimal() else text


def merge_spellings(
    codes: NDArray[np.int64], categories: Sequence[str]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Codes and categories in which the same whole number is one category, however written."""
    names = [whole_spelling(category) for category in categories]
    if names == list(categories):
        return codes, tuple(names)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    place = np.array([*(number[name] for name in names), -1], np.int64)  # last: code -1
    return place[codes], tuple(number)


def number_name(value: float) -> str:
    """A number as a category.

    >>> number_name(3.0), number_name(0.5), number_name(12345678.0)
    ('3', '0.5', '12345678')
    """
    return str(int(value)) if value == int(value) else repr(value)


def as_text(column: Column) -> Column:
    """A column of numbers or booleans as categories; text as it is."""
    if column.kind == "text":
        return column
    gone = column.missing
    codes = np.full(len(gone), -1, np.int64)
    kinds, codes[~gone] = np.unique(check_finite(column).values[~gone], return_inverse=True)
    truth = ("false", "true")
    named = (truth[int(v)] if column.kind == "bool" else number_name(v) for v in kinds.tolist())
    return Column(column.name, "text", codes, tuple(named))


def text_as_numbers(column: Column) -> Column:
    """A column of text that reads as numbers as these; numbers as they are, other text refused."""
    if column.kind != "text":
        return column
    numbers = np.full(len(column.categories) + 1, np.nan)  # last: code -1
    for i, category in enumerate(column.categories):
        with suppress(ValueError):
            numbers[i] = float(category)
    strange = int((np.isnan(numbers[column.values]) & ~column.missing).sum())
    if strange:
        raise DataError(
            f"the column `{column.name}` must hold numbers, got text in {strange:,} of "
            f"{len(column.values):,} rows"
        )
    return Column(column.name, "number", numbers[column.values])


def text_as_dates(column: Column) -> Column:
    """A column of text that reads as ISO dates as days since 1970, in UTC; others as they are.

    >>> text = Column("day", "text", np.array([0, 1, -1]), ("1970-01-02", "1970-01-01 12:00:00"))
    >>> text_as_dates(text).values.tolist()
    [1.0, 0.5, nan]
    """
    if column.kind != "text":
        return column
    days = np.full(len(column.categories) + 1, np.nan)  # last: code -1
    for i, category in enumerate(column.categories):
        try:
            days[i] = days_of(category)
        except ValueError:
            return column
    return Column(column.name, "date", days[column.values])


def days_of(text: str) -> float:
    """Days from 1 January 1970 in UTC to an ISO date or time; one without a zone is in UTC."""
    when = datetime.fromisoformat(text.strip())
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)


def check_finite(column: Column) -> Column:
    """Refuse infinite numbers, and those that float32 cannot hold; missing ones pass."""
    if column.kind != "text":
        beyond = int((np.abs(column.values) > LARGEST).sum())
        if beyond:
            raise DataError(
                f"column `{column.name}` must hold finite numbers below 3.4e38, "
                f"got others in {beyond:,} of {len(column.values):,} rows"
            )
    return column
