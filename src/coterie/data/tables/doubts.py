"""What looks wrong with a table: each doubt is a sentence that says where and how much."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.tables.columns import LARGEST, Column
from coterie.data.tables.labels import Labels
from coterie.data.tables.rows import Grouped
from coterie.data.tables.statistics import moments, word_counts

TINY = 10  # a client with fewer rows learns and tests on next to nothing
MOSTLY = 0.5  # share of missing values that is worth a word
FEW = 20  # different words that may be codes, though they read as numbers
LISTED = 5  # names that a sentence lists

Codes = NDArray[np.int64]


class Evidence(NamedTuple):
    """What columns are held against: whose rows they are, and what they are labelled."""

    clients: int  # how many there are
    owners: Codes  # [n] whose row it is
    label: str  # the column's name
    classes: int  # how many different labels there are
    labels: Codes  # [n] which of them a row has


def evidence_of(client: Column, label: Column) -> Evidence:
    """Evidence from the columns of clients and labels."""
    labels, classes = coded(label)
    return Evidence(len(client.words), client.values, label.name, classes, labels)


def size_doubts(clients: Grouped, least: int) -> list[str]:
    """Clients that are too small to be kept, or to be of use."""
    each, doubts = np.diff(clients.offsets), []
    gone, tiny = int((each < least).sum()), int(((each >= least) & (each < TINY)).sum())
    if gone:
        doubts.append(
            f"{gone:,} clients have fewer than {least:,} rows (`min_samples`) and are left out"
        )
    if tiny:
        doubts.append(f"{tiny:,} clients have fewer than {TINY} rows, too few to test on")
    return doubts


def label_doubts(column: Column, labels: Labels, clients: Grouped) -> list[str]:
    """Classes that one client has for itself; targets that are far from scale."""
    values = labels.values[clients.rows]
    if labels.regression:
        told = moments(values.astype(np.float64), clients.offsets)
        size = max(abs(told.mean), told.deviation)
        if 0.01 < size < 100:
            return []
        return [
            f"targets `{column.name}` are of size {size:.3g} and are not scaled: divide them, or "
            "choose `lr` with care"
        ]
    counts = word_counts(values, clients.offsets, len(labels.classes)).toarray()[:, :-1]
    alone = np.flatnonzero((counts > 0).sum(0) == 1).tolist()
    if not alone:
        return []
    return [f"labels that one client only has: {listed([labels.classes[i] for i in alone])}"]


def column_doubts(column: Column, evidence: Evidence) -> list[str]:
    """What is wrong with a column of features."""
    codes, kinds = coded(column)
    return value_doubts(column, codes, kinds) + telltale_doubts(column, codes, kinds, evidence)


def value_doubts(column: Column, codes: Codes, kinds: int) -> list[str]:
    """Values that are missing, infinite, always the same or never."""
    name, known, doubts = f"column `{column.name}`", int((codes >= 0).sum()), []
    if column.kind != "text":
        beyond = int((np.abs(column.values) > LARGEST).sum())
        if beyond:
            doubts.append(
                f"{name} is infinite or beyond 3.4e38 in {beyond:,} rows, which is refused"
            )
    doubts += number_doubts(column)
    if known < (1 - MOSTLY) * len(codes):
        doubts.append(f"{name} is missing in {1 - known / len(codes):.0%} of the rows")
    if kinds == 0 or (kinds == 1 and known == len(codes)):
        doubts.append(f"{name} is constant and is left out")
    # Real numbers and dates may well differ in every row; names and whole numbers that do are ids.
    elif kinds == known > 2 and column.kind in ("text", "whole"):
        out = " and is left out" if column.kind == "text" and known == len(codes) else ""
        doubts.append(f"{name} is different in every row, as an identifier is{out}")
    return doubts


def number_doubts(column: Column) -> list[str]:
    """Text that is mostly numbers; of few kinds they may well be codes, and are in order."""
    if column.kind != "text":
        return []
    counts = np.bincount(column.values[column.values >= 0], minlength=len(column.words))
    numeric = np.array([is_number(word) for word in column.words], bool)
    part = counts[numeric].sum() / max(counts.sum(), 1)
    if (counts > 0).sum() <= FEW or part < MOSTLY:
        return []
    others = [column.words[i] for i in np.flatnonzero((counts > 0) & ~numeric).tolist()]
    reason = f"; others are such as `{others[0]}`" if others else ""
    return [
        f"column `{column.name}` is taken for text, though {part:.0%} of its values are numbers"
        f"{reason}"
    ]


def is_number(word: str) -> bool:
    """Whether a word reads as a number, with a decimal point or comma.

    >>> is_number("-1.5"), is_number("1,5"), is_number("12 kg")
    (True, True, False)
    """
    try:
        float(word.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def telltale_doubts(column: Column, codes: Codes, kinds: int, evidence: Evidence) -> list[str]:
    """Whether values stand for labels or for clients; few rows for each value prove neither."""
    name, known = f"column `{column.name}`", int((codes >= 0).sum())
    doubts: list[str] = []
    if kinds < 2:
        return doubts
    same, often = kinds == evidence.classes, 10 * kinds <= known
    # Numbers have codes in their order: real ones that never repeat may still rise with the label.
    rising = np.array_equal(codes, evidence.labels)
    repeat = 2 * kinds <= known
    if rising or (((same and repeat) or often) and pairs(codes, evidence.labels) == kinds):
        doubts.append(
            f"{name} is the label `{evidence.label}` in other words"
            if same
            else f"{name} gives the label away: each of its values has one label only"
        )
    if evidence.clients <= kinds <= known / 2 and pairs(codes, evidence.owners) == kinds:
        doubts.append(f"{name} tells who the client is: each of its values is of one client")
    return doubts


def pairs(one: Codes, other: Codes) -> int:
    """How many different pairs of codes there are, where the first is known.

    >>> pairs(np.array([0, 0, 1, -1]), np.array([0, 0, 0, 1]))
    2
    """
    known = one >= 0
    return len(np.unique(one[known] * (int(other.max()) + 1) + other[known]))


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def coded(column: Column) -> tuple[Codes, int]:
    """Codes [n] of a column's values, -1 for missing ones, and how many kinds there are."""
    if column.kind == "text":
        used = np.bincount(column.values + 1, minlength=len(column.words) + 1)[1:]
        return column.values, int((used > 0).sum())
    gone = column.missing
    codes = np.full(len(gone), -1, np.int64)
    kinds, places = np.unique(column.values[~gone], return_inverse=True)
    codes[~gone] = places
    return codes, len(kinds)
