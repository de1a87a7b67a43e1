"""Labels: whether a column holds classes or real targets, and what the classes are called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import DataError
from coterie.data.tables.client_rows import ClientRows
from coterie.data.tables.columns import LARGEST, Column, as_text, sort_key, text_as_numbers
from coterie.data.tables.statistics import column_moments

TARGETS = ["auto", "classification", "regression"]
SHOWN = 5  # classes that a sentence lists
MANY = 20  # whole numbers of more kinds than this are targets, unless they look like codes
REPEATS = 3  # rows of a class on average, of whole numbers that are classes
CODES = 5  # rows of the rarest class, of many whole numbers that are codes of classes


class Labels(NamedTuple):
    """The labels of n rows."""

    values: NDArray[Any]  # [n] classes from 0, int64; or targets, as they are in float64
    classes: tuple[str, ...]  # names of the classes; empty for regression
    given: bool = True  # whether there are any; else all values are 0

    @property
    def regression(self) -> bool:
        """Whether they are targets rather than classes."""
        return self.given and not self.classes

    def scaled(self, target: TargetScale) -> Labels:
        """The same with targets in the units of `target`; classes as they are."""
        if not self.regression:
            return self
        return self._replace(values=target.scale_targets(self.values))


class TargetScale(NamedTuple):
    """The units in which a regression is learnt: a target less `centre`, divided by `scale`."""

    centre: float = 0.0
    scale: float = 1.0

    def scale_targets(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Targets in these units, from those of the table."""
        scaled = (values.astype(np.float64) - self.centre) / self.scale
        return scaled.astype(np.float32)

    def scale_back(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Targets or outputs in the units of the table."""
        return np.asarray(values, np.float64) * self.scale + self.centre


AS_THEY_ARE = TargetScale()


def absent_labels(rows: int) -> Labels:
    """What stands for the labels of n rows that have none."""
    return Labels(np.zeros(rows, np.float32), (), given=False)


def read_labels(column: Column, target: str, rows: NDArray[np.int64]) -> Labels:
    """Classes or targets of a label column; only `rows` count, the others get 0.

    `auto` takes text, booleans and whole numbers of few kinds as classes, real numbers and whole
    ones of many kinds as targets. Classes are numbered in the order of their names, or of the
    numbers they are. Targets keep their units: see `fit_target`.
    """
    used = replace(column, values=column.values[rows])
    check_label(used)
    regression = (guess_target(used) if target == "auto" else target) == "regression"
    labels = as_targets(used) if regression else as_classes(used)
    values = np.zeros(len(column.values), labels.values.dtype)
    values[rows] = labels.values
    return Labels(values, labels.classes)


def fit_target(labels: Labels, train: ClientRows) -> TargetScale:
    """Mean and deviation of the targets that clients train on, from their sums; 0 and 1 of classes.

    >>> rows = ClientRows(("a", "b"), np.array([0, 1, 2]), np.array([0, 1, 3]))
    >>> fit_target(Labels(np.array([1.0, 3.0, 5.0, 99.0]), ()), rows)
    TargetScale(centre=3.0, scale=1.632993161855452)
    """
    if not labels.regression:
        return AS_THEY_ARE
    told = column_moments(labels.values[train.rows].astype(np.float64), train.offsets)
    return TargetScale(told.mean, 1.0 if told.constant else told.deviation)


def count_classes(labels: Labels, train: ClientRows) -> tuple[int, ...]:
    """How often clients have each class to train on, summed up; nothing of a regression."""
    counts = (
        np.bincount(labels.values[train.rows], minlength=len(labels.classes))
        if labels.classes
        else ()
    )
    return tuple(int(count) for count in counts)


def check_label(column: Column) -> None:
    """Refuse labels that are missing or not finite."""
    gone = int(column.missing.sum())
    if gone:
        raise DataError(
            f"the label column `{column.name}` must have no missing values, got {gone:,} "
            f"in {len(column.values):,} rows"
        )
    if column.kind != "text" and bool((np.abs(column.values) > LARGEST).any()):
        raise DataError(f"the label column `{column.name}` must hold finite numbers below 3.4e38")


def guess_target(column: Column) -> str:
    """What `target=auto` stands for."""
    if column.kind == "whole":
        return "classification" if are_codes(column.values) else "regression"
    return "classification" if column.kind in ("text", "bool") else "regression"


def are_codes(values: NDArray[Any]) -> bool:
    """Whether whole numbers are classes rather than amounts.

    They are where they have few kinds that come again and again; where there are many kinds, only
    if they number the classes from 0 or 1 without a gap, and each has several rows.

    >>> are_codes(np.repeat([1, 5, 9], 4)), are_codes(np.arange(18, 80).repeat(9))
    (True, False)
    >>> are_codes(np.arange(62).repeat(9)), are_codes(np.arange(62))
    (True, False)
    """
    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) <= MANY:
        return len(kinds) <= 2 or len(values) >= REPEATS * len(kinds)
    numbered = kinds[0] in (0, 1) and kinds[-1] - kinds[0] == len(kinds) - 1
    return bool(numbered and counts.min() >= CODES)


def whole_if_gaps(column: Column) -> Column:
    """A label as whole numbers if gaps alone made them real, as pandas does to a column."""
    if column.kind != "number" or not column.missing.any():
        return column
    known = column.values[~column.missing]
    whole = len(known) > 0 and bool((known == np.round(known)).all())
    return replace(column, kind="whole") if whole else column


def target_doubts(column: Column, target: str, rows: NDArray[np.int64]) -> list[str]:
    """What `target=auto` took a label for that may be something else; only `rows` count."""
    values = column.values[rows]
    used = replace(column, values=values)
    if target != "auto" or used.missing.any():
        return []
    if looks_like_classes(used):
        return [
            f"the label column `{column.name}` holds a few whole numbers but is of a real type, "
            "so it is taken for a regression: say target=classification if they are classes"
        ]
    if column.kind != "whole" or (kinds := len(np.unique(values))) <= 2:
        return []
    if not are_codes(values):
        taken, other = "a regression", "classification if they are classes"
    elif kinds > MANY:
        taken, other = "a classification", "regression if they are amounts"
    else:
        return []
    return [
        f"the label column `{column.name}` holds {kinds:,} different whole numbers and is taken "
        f"for {taken}: say target={other}"
    ]


def as_targets(column: Column) -> Labels:
    """Labels as numbers, unchanged, in double precision."""
    if column.kind == "text":
        raise DataError(f"the label column `{column.name}` must hold numbers for regression")
    if len(np.unique(column.values)) < 2:
        raise DataError(
            f"regression needs targets that differ, but every row has {column.name} = "
            f"{column.values[0]:g}"
        )
    return Labels(column.values, ())


def as_classes(column: Column) -> Labels:
    """Labels numbered from 0, and the names of the numbers."""
    if column.kind == "text":
        used = np.flatnonzero(np.bincount(column.values, minlength=len(column.categories)))
        found = tuple(column.categories[i] for i in used.tolist())
        order = np.array(sorted(range(len(found)), key=sort_key(found)))
        place = np.zeros(len(column.categories), np.int64)
        place[used[order]] = np.arange(len(order))
        labels = Labels(place[column.values], tuple(found[i] for i in order.tolist()))
    else:
        if bool((column.values != np.round(column.values)).any()):
            raise DataError(
                f"the label column `{column.name}` must hold names or whole numbers for "
                f"classification, got real ones"
            )
        kinds, place = np.unique(column.values, return_inverse=True)
        names = [str(int(value)) for value in kinds]
        if column.kind == "bool":
            names = ["false" if value == 0 else "true" for value in kinds]
        labels = Labels(place.astype(np.int64), tuple(names))
    if len(labels.classes) < 2:
        raise DataError(
            f"classification needs two classes or more, but every row has {column.name} = "
            f"{labels.classes[0]}"
        )
    return labels


def as_known_classes(
    column: Column, classes: tuple[str, ...], rows: NDArray[np.int64], target: TargetScale
) -> Labels:
    """Labels by classes that are known already, targets where there are none; others get 0."""
    if not classes:
        return Labels(target.scale_targets(text_as_numbers(column).values), ())
    own = as_text(column)
    number = {name: i for i, name in enumerate(classes)}
    known = np.array([number.get(name, -1) for name in own.categories], np.int64)[own.values]
    strange = int((known[rows] < 0).sum())
    if strange:
        shown = ", ".join(classes[:SHOWN]) + (", ..." if len(classes) > SHOWN else "")
        raise DataError(
            f"the label column `{column.name}` holds classes that training did not have, in "
            f"{strange:,} of {len(rows):,} rows (it had {shown})"
        )
    return Labels(known.clip(0), classes)


def looks_like_classes(column: Column) -> bool:
    """Whether real numbers are all whole and of few kinds, as classes that pandas made real."""
    if column.kind != "number" or bool((column.values != np.round(column.values)).any()):
        return False
    return len(np.unique(column.values)) <= 20
