"""What looks wrong with a table: each problem is a sentence that says where and how much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.tables.client_rows import ClientRows
from coterie.data.tables.columns import LARGEST, Column
from coterie.data.tables.labels import Labels
from coterie.data.tables.statistics import category_counts, column_moments

TINY = 10  # a client with fewer rows learns and tests on next to nothing
MOSTLY = 0.5  # share of missing values that is worth a sentence
FEW = 20  # different categories that may be codes, though they read as numbers
LISTED = 5  # names that a sentence lists

Codes = NDArray[np.int64]


class Evidence(NamedTuple):
    """What columns are held against: whose rows they are, and what they are labelled, if at all."""

    clients: int  # how many there are
    owners: Codes  # [n] whose row it is
    label: str = ""  # the column's name
    classes: int = 0  # how many different labels there are
    labels: Codes | None = None  # [n] which of them a row has


def collect_evidence(client: Column, label: Column | None) -> Evidence:
    """Evidence from the columns of clients and labels."""
    owners = Evidence(len(client.categories), client.values)
    if label is None:
        return owners
    labels, classes = value_codes(label)
    return owners._replace(label=label.name, classes=classes, labels=labels)


def size_problems(clients: ClientRows, least: int) -> list[str]:
    """Clients that are too small to be kept, or to be of use."""
    each, problems = np.diff(clients.offsets), []
    gone, tiny = int((each < least).sum()), int(((each >= least) & (each < TINY)).sum())
    if gone:
        problems.append(
            f"{gone:,} clients have fewer than {least:,} rows (`min_samples`) and are left out"
        )
    if tiny:
        problems.append(f"{tiny:,} clients have fewer than {TINY} rows, too few to test on")
    return problems


def label_problems(
    column: Column, labels: Labels, clients: ClientRows, *, scaled: bool
) -> list[str]:
    """Classes that one client has for itself; targets that are not scaled, and far from 1."""
    values = labels.values[clients.rows]
    if labels.regression:
        told = column_moments(values.astype(np.float64), clients.offsets)
        size = max(abs(told.mean), told.deviation)
        if scaled or 0.01 < size < 100:
            return []
        return [
            f"targets `{column.name}` are of size {size:.3g} and are not scaled: divide them, or "
            "choose `lr` with care"
        ]
    counts = category_counts(values, clients.offsets, len(labels.classes)).toarray()[:, :-1]
    alone = np.flatnonzero((counts > 0).sum(0) == 1).tolist()
    if not alone:
        return []
    return [f"labels that one client only has: {join_names([labels.classes[i] for i in alone])}"]


def column_problems(column: Column, evidence: Evidence) -> list[str]:
    """What is wrong with a column of features."""
    codes, kinds = value_codes(column)
    return value_problems(column, codes, kinds) + leak_problems(column, codes, kinds, evidence)


def value_problems(column: Column, codes: Codes, kinds: int) -> list[str]:
    """Values that are missing, infinite, always the same or never."""
    name, known, problems = f"column `{column.name}`", int((codes >= 0).sum()), []
    if column.kind != "text":
        beyond = int((np.abs(column.values) > LARGEST).sum())
        if beyond:
            problems.append(
                f"{name} is infinite or beyond 3.4e38 in {beyond:,} rows, which is refused"
            )
    problems += numeric_text_problems(column)
    if known < (1 - MOSTLY) * len(codes):
        problems.append(f"{name} is missing in {1 - known / len(codes):.0%} of the rows")
    if kinds == 0 or (kinds == 1 and known == len(codes)):
        problems.append(f"{name} is constant and is left out")
    # Real numbers and dates may well differ in every row; names and whole numbers that do are ids.
    elif kinds == known > 2 and column.kind in ("text", "whole"):
        out = " and is left out" if column.kind == "text" and known == len(codes) else ""
        problems.append(f"{name} is different in every row, as an identifier is{out}")
    return problems


def numeric_text_problems(column: Column) -> list[str]:
    """Text that is mostly numbers; of few kinds they may well be codes, and are in order."""
    if column.kind != "text":
        return []
    counts = np.bincount(column.values[column.values >= 0], minlength=len(column.categories))
    numeric = np.array([is_number(category) for category in column.categories], bool)
    part = counts[numeric].sum() / max(counts.sum(), 1)
    if (counts > 0).sum() <= FEW or part < MOSTLY:
        return []
    others = [column.categories[i] for i in np.flatnonzero((counts > 0) & ~numeric).tolist()]
    reason = f"; others are such as `{others[0]}`" if others else ""
    return [
        f"column `{column.name}` is taken for text, though {part:.0%} of its values are numbers"
        f"{reason}"
    ]


def is_number(text: str) -> bool:
    """Whether a text reads as a number, with a decimal point or comma.

    >>> is_number("-1.5"), is_number("1,5"), is_number("12 kg")
    (True, True, False)
    """
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def leak_problems(column: Column, codes: Codes, kinds: int, evidence: Evidence) -> list[str]:
    """Whether values stand for labels or for clients; few rows for each value prove neither."""
    name, known = f"column `{column.name}`", int((codes >= 0).sum())
    problems: list[str] = []
    if kinds < 2:
        return problems
    if evidence.labels is not None and tells_label(codes, kinds, evidence.classes, evidence.labels):
        problems.append(
            f"{name} is the label `{evidence.label}` under another name"
            if kinds == evidence.classes
            else f"{name} gives the label away: each of its values has one label only"
        )
    if evidence.clients <= kinds <= known / 2 and count_pairs(codes, evidence.owners) == kinds:
        problems.append(f"{name} tells who the client is: each of its values is of one client")
    return problems


def tells_label(codes: Codes, kinds: int, classes: int, labels: Codes) -> bool:
    """Whether each of a column's kinds of values has one of the labels [n] only."""
    known = int((codes >= 0).sum())
    same, often, repeat = kinds == classes, 10 * kinds <= known, 2 * kinds <= known
    # Numbers have codes in their order: real ones that never repeat may still rise with the label.
    rising = np.array_equal(codes, labels)
    return rising or (((same and repeat) or often) and count_pairs(codes, labels) == kinds)


def count_pairs(one: Codes, other: Codes) -> int:
    """How many different pairs of codes there are, where the first is known.

    >>> count_pairs(np.array([0, 0, 1, -1]), np.array([0, 0, 0, 1]))
    2
    """
    known = one >= 0
    return len(np.unique(one[known] * (int(other.max()) + 1) + other[known]))


def join_names(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def value_codes(column: Column) -> tuple[Codes, int]:
    """Codes [n] of a column's values, -1 for missing ones, and how many kinds there are."""
    if column.kind == "text":
        used = np.bincount(column.values + 1, minlength=len(column.categories) + 1)[1:]
        return column.values, int((used > 0).sum())
    gone = column.missing
    codes = np.full(len(gone), -1, np.int64)
    kinds, places = np.unique(column.values[~gone], return_inverse=True)
    codes[~gone] = places
    return codes, len(kinds)
