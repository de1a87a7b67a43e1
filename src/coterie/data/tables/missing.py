"""Values that mean that there is none: `?`, `unknown` or -9, whatever a table's author wrote."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from coterie.data.tables.read import import_arrow, is_plain_text, plain_column


def blank_missing(table: Any, words: tuple[str, ...], columns: list[str]) -> Any:
    """An Arrow table without the values that `words` spell, in these columns.

    A column of text that then holds nothing but numbers is one of numbers.
    """
    if not words:
        return table
    for name in columns:
        place = table.column_names.index(name)
        column = table.column(name)
        blanked = blank_column(column, words)
        if blanked is not column:
            table = table.set_column(place, name, blanked)
    return table


def blank_column(column: Any, words: tuple[str, ...]) -> Any:
    """A column without the values that `words` spell; itself where it has none of them."""
    pyarrow, compute = import_arrow(), import_arrow("pyarrow.compute")
    types, column = pyarrow.types, plain_column(column)
    text = is_plain_text(column.type)
    if not text and not types.is_integer(column.type) and not types.is_floating(column.type):
        return column
    if text:
        values = compute.utf8_trim_whitespace(column)
        known = pyarrow.array(words, column.type)
    else:
        values, numbers = column.cast("float64", safe=False), []
        for word in words:
            with suppress(ValueError):
                numbers.append(float(word))
        known = pyarrow.array(numbers, "float64")
    found = compute.is_in(values, value_set=known)
    if not compute.any(found).as_py():
        return column
    blanked = compute.if_else(found, pyarrow.scalar(None, column.type), column)
    return read_numbers(blanked) if text else blanked


def read_numbers(column: Any) -> Any:
    """A column of text as numbers, if all that it holds are numbers."""
    pyarrow, compute = import_arrow(), import_arrow("pyarrow.compute")
    for kind in ("int64", "float64"):
        with suppress(pyarrow.ArrowInvalid):
            return compute.utf8_trim_whitespace(column).cast(kind)
    return column
