"""Features out of columns: what training rows tell about them, and how it is written as float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import DataError
from coterie.data.tables.client_rows import ClientRows, Rows
from coterie.data.tables.columns import (
    Column,
    as_text,
    check_finite,
    read_column,
    text_as_dates,
    text_as_numbers,
)
from coterie.data.tables.statistics import (
    Moments,
    category_counts,
    column_moments,
    largest_second_moment,
    total_counts,
)


@dataclass(frozen=True)
class Scaled:
    """A number less `centre`, divided by `scale`; a missing one is `fill`."""

    column: str
    centre: float
    scale: float
    fill: float  # the mean of the training rows of all clients
    indicator: bool  # a second feature is 1 where the number is missing
    date: bool = False  # whether the number is of days
    unit: float = 1.0  # all its features are divided by this

    @property
    def names(self) -> list[str]:
        """The names of its features."""
        return [self.column, *([f"{self.column}=(missing)"] if self.indicator else [])]

    def write(self, column: Column, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write the features of `rows` into the columns of `out`, [rows, features]."""
        values = column.values[rows]
        gone = np.isnan(values)
        out[:, 0] = (np.where(gone, self.fill, values) - self.centre) / self.scale
        if self.indicator:
            out[:, 1] = gone


@dataclass(frozen=True)
class Indicator:
    """1 where a value is missing: all that a column tells whose known values are all the same."""

    column: str
    unit: float = 1.0

    @property
    def names(self) -> list[str]:
        """The name of its feature."""
        return [f"{self.column}=(missing)"]

    def write(self, column: Column, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write the feature of `rows` into `out`, [rows, 1]."""
        out[:, 0] = np.isnan(column.values[rows])


@dataclass(frozen=True)
class OneHot:
    """One feature for each common category, one that the rare ones share, one for missing values.

    What training never saw, and no feature stands for, is all zeros.
    """

    column: str
    words: tuple[str, ...]  # the common categories; the name is that in the schema of an app
    other: bool  # some categories are rare, and share a feature with those never seen
    missing: bool  # training had missing values
    unit: float = 1.0

    @property
    def names(self) -> list[str]:
        """The names of its features."""
        extra = [*(["(other)"] if self.other else []), *(["(missing)"] if self.missing else [])]
        return [f"{self.column}={category}" for category in [*self.words, *extra]]

    def write(self, column: Column, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write the features of `rows` into the columns of `out`, [rows, features], zero so far."""
        feature = {category: i for i, category in enumerate(self.words)}
        rare = len(self.words) if self.other else -1
        # The last place is that of code -1, a missing value.
        gone = len(self.words) + self.other if self.missing else -1
        place = np.array([*(feature.get(category, rare) for category in column.categories), gone])
        hot = place[column.values[rows]]
        seen = np.flatnonzero(hot >= 0)
        out[seen, hot[seen]] = 1


Encoder = Scaled | Indicator | OneHot


def fit_encoder(
    column: Column, train: ClientRows, *, categories: int, standardise: bool
) -> Encoder | str:
    """How to write a column, by the sums that clients make over their training rows.

    A column that tells nothing apart gives the reason in place of an encoder.
    """
    values = column.values[train.rows]
    if column.kind == "text":
        counts = total_counts(category_counts(values, train.offsets, len(column.categories)))
        return fit_one_hot(column, counts, categories)
    told = column_moments(values, train.offsets)
    return fit_number(column.name, told, len(values), column.kind == "date", standardise)


def fit_number(
    name: str, told: Moments, rows: int, date: bool, standardise: bool
) -> Scaled | Indicator | str:
    """How to write a column of numbers, by what its `rows` training rows amount to."""
    indicator = told.known < rows
    if told.constant:
        return Indicator(name) if indicator and told.known else "constant"
    centre, scale = (told.mean, told.deviation) if standardise else (0.0, 1.0)
    return Scaled(name, centre, scale, told.mean, indicator, date)


def fit_one_hot(column: Column, counts: Rows, categories: int) -> OneHot | str:
    """The `categories` most frequent categories by counts [categories + 1]; ties go by name."""
    each, missing = counts[:-1], int(counts[-1])
    seen = np.flatnonzero(each)
    if len(seen) + (missing > 0) < 2:
        return "constant"
    if each.max() == 1:  # names of rows: what they can tell is whether there is one
        return OneHot(column.name, (), False, True) if missing else "a different text in every row"
    if len(seen) > categories:
        # Only categories that reach the last place by count need to be put in order.
        least = np.partition(each, -categories)[-categories]
        seen = seen[each[seen] >= least]
    order = sorted(seen.tolist(), key=lambda i: (-each[i], column.categories[i]))
    common = tuple(sorted(column.categories[i] for i in order[:categories]))
    return OneHot(column.name, common, int((each > 0).sum()) > categories, missing > 0)


def encode_rows(table: Any, encoders: Sequence[Encoder], rows: Rows) -> NDArray[np.float32]:
    """The features of some rows, [rows, d]; a column at a time, to save memory."""
    widths = [len(encoder.names) for encoder in encoders]
    out: NDArray[np.float32] = np.zeros((len(rows), sum(widths)), np.float32)
    begin = 0
    for encoder, width in zip(encoders, widths, strict=True):
        column = fit_column(read_column(table, encoder.column), encoder)
        features = out[:, begin : begin + width]
        encoder.write(column, rows, features)
        if encoder.unit != 1:
            features /= encoder.unit
        begin += width
    return out


def shared_unit(x: NDArray[np.float32], offsets: Rows, most: float) -> float:
    """What to divide all features [n, d] by, so that no client's are too large for a step size.

    The largest eigenvalue of a client's mean of x x' is what limits its step size. Each client says
    its own, and the features are divided by one number where the largest of all exceeds `most`.

    >>> x = np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)
    >>> shared_unit(x, np.array([0, 1, 2]), 1.0), shared_unit(x, np.array([0, 1, 2]), 25.0)
    (5.0, 1.0)
    """
    return unit_of(largest_of_clients(x, offsets, most), most)


def largest_of_clients(x: NDArray[np.float32], offsets: Rows, most: float) -> float:
    """The largest eigenvalue of any client's mean of x x'; where none exceeds `most`, a bound."""
    return max(
        largest_second_moment(x[begin:end], most)
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    )


def unit_of(largest: float, most: float) -> float:
    """What to divide features by whose largest eigenvalue is `largest`, and may be `most`."""
    return float((largest / most) ** 0.5) if largest > most else 1.0


def fit_column(column: Column, encoder: Encoder) -> Column:
    """A column as its encoder takes it: text made of numbers, numbers of text that reads as such.

    New rows may be few, and stored otherwise than those that the encoder was learnt from.
    """
    if isinstance(encoder, OneHot):
        return as_text(column)
    if isinstance(encoder, Scaled) and encoder.date:
        column = text_as_dates(column)
    dates, empty = column.kind == "date", bool(column.missing.all())
    if isinstance(encoder, Scaled) and encoder.date != dates and not empty:
        wanted = "dates or times" if encoder.date else "numbers"
        raise DataError(f"the column `{column.name}` must hold {wanted}, as in training")
    return check_finite(text_as_numbers(column))
