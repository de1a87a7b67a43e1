"""How well scores rank samples: AUC and average precision, exact with ties, of many groups at once.

Samples may be counted: `positive` and `negative` say how many of each kind have a score. Where the
scores are those of bins, the order inside a bin is not known. Its samples then pass for ties, and
`auc_error` and `precision_error` say how far from the truth that is at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.float64]


class RankedCounts(NamedTuple):
    """How many samples of each kind have each score, the highest first, group after group."""

    group: NDArray[np.int64]  # [u]
    positive: Counts  # [u]
    negative: Counts  # [u]
    groups: int

    def total(self, values: Counts) -> Counts:
        """The sums [g] over each group of values [u]."""
        return np.bincount(self.group, values, self.groups).astype(np.float64)

    def above(self, values: Counts) -> Counts:
        """What values [u] add up to in the same group above each score, [u]."""
        of_groups = self.total(values)
        begins = np.cumsum(of_groups) - of_groups
        found: Counts = np.cumsum(values) - values - begins[self.group]
        return found


def rank_samples(
    group: NDArray[np.int64],
    score: NDArray[np.float64],
    positive: Counts,
    negative: Counts,
    groups: int,
) -> RankedCounts:
    """Samples [n] of groups 0 to `groups` - 1, those with one score in one group put together."""
    order = np.lexsort((-score, group))
    group, score, positive, negative = group[order], score[order], positive[order], negative[order]
    if not len(order):
        return RankedCounts(group, positive, negative, groups)
    first = np.ones(len(order), dtype=bool)
    first[1:] = (group[1:] != group[:-1]) | (score[1:] != score[:-1])
    begin = np.flatnonzero(first)
    positive, negative = np.add.reduceat(positive, begin), np.add.reduceat(negative, begin)
    return RankedCounts(group[begin], positive, negative, groups)


def auc(ranked: RankedCounts) -> Counts:
    """The chance that a positive sample has a higher score than a negative one, [g]; ties are half.

    NaN in a group without one or the other.

    >>> one = np.array([1.0, 0.0, 1.0, 0.0])
    >>> auc(rank_samples(np.zeros(4, int), np.array([0.9, 0.5, 0.5, 0.1]), one, 1 - one, 1))
    array([0.875])
    """
    below = ranked.total(ranked.negative)[ranked.group] - ranked.above(ranked.negative)
    wins = ranked.total(ranked.positive * (below - ranked.negative / 2))
    return _divide(wins, ranked.total(ranked.positive) * ranked.total(ranked.negative))


def auc_error(ranked: RankedCounts) -> Counts:
    """How far `auc` is at most from that of samples of which only bins are known, [g]."""
    ties = ranked.total(ranked.positive * ranked.negative) / 2
    return _divide(ties, ranked.total(ranked.positive) * ranked.total(ranked.negative))


def average_precision(ranked: RankedCounts) -> Counts:
    """The mean over positive samples of the precision among those that rank as high, [g].

    It is that of scikit-learn: no interpolation, ties are one step. NaN in a group without a
    positive sample.

    >>> one = np.array([1.0, 0.0, 1.0, 0.0])
    >>> average_precision(rank_samples(np.zeros(4, int), np.array([4.0, 3, 2, 1]), one, 1 - one, 1))
    array([0.83333333])
    """
    return _mean_precision(ranked, ranked.positive, ranked.negative)


def precision_error(ranked: RankedCounts) -> Counts:
    """How far `average_precision` is at most from that of samples of which bins are known, [g]."""
    found = average_precision(ranked)
    # Inside a bin no positive sample can do better than all of them, with none of the negatives,
    # or worse than the first, behind all of the negatives.
    best = _mean_precision(ranked, ranked.positive, np.zeros_like(ranked.negative))
    worst = _mean_precision(ranked, np.minimum(ranked.positive, 1.0), ranked.negative)
    return np.maximum(best - found, found - worst)


def _mean_precision(ranked: RankedCounts, positive: Counts, negative: Counts) -> Counts:
    """The mean precision where so many samples of each score are among those that rank as high."""
    hits = ranked.above(ranked.positive) + positive
    drawn = hits + ranked.above(ranked.negative) + negative
    precision = _divide(hits, drawn, missing=0.0)
    return _divide(ranked.total(ranked.positive * precision), ranked.total(ranked.positive))


def _divide(values: Counts, by: Counts, missing: float = np.nan) -> Counts:
    found: Counts = np.divide(values, by, out=np.full(len(values), missing), where=by > 0)
    return found
