"""Tests of significance between methods that were run several times.

Runs are repeated with other seeds of the start, on other splits of the data, or both. Two methods
are compared by their differences on the same seeds. Where the same samples are split anew each
time, training parts overlap and the differences are not independent: a plain t-test would find far
too much. The corrected resampled t-test (Nadeau and Bengio, Inference for the Generalization Error,
Machine Learning 52, 2003) takes the variance of the mean of J differences d to be

    (1/J + n_test / n_train) var(d)

in place of var(d) / J, with J - 1 degrees of freedom. The p-values of several methods against the
best are adjusted by Holm's procedure (Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple


class Repeat(NamedTuple):
    """What tells runs apart that are otherwise alike: runs of two methods are paired by it."""

    split: int | None  # the seed by which the data were drawn and split; None: they were given
    start: int | None  # the seed of training
    again: int = 0  # how many runs with these seeds came before


def as_repeat(key: Any) -> Repeat:
    """A key of a run as a repeat: what is none tells starts apart."""
    return key if isinstance(key, Repeat) else Repeat(None, key)


def has_splits(repeats: Iterable[Any]) -> bool:
    """Whether runs are on several splits of the data."""
    return len({as_repeat(repeat).split for repeat in repeats}) > 1


def repeats_text(repeats: Iterable[Any]) -> str:
    """What varies between runs, in words.

    >>> repeats_text([Repeat(0, 0), Repeat(0, 1)])
    '2 starts on one split of the data (split_seed=0)'
    >>> repeats_text([Repeat(0, 0), Repeat(1, 1)])
    '2 seeds, of the data and of the start alike'
    >>> repeats_text([Repeat(0, 0), Repeat(1, 0)])
    '2 splits of the data, one start on each (seed=0)'
    """
    known = [as_repeat(repeat) for repeat in repeats]
    splits, starts = ({each[i] for each in known} for i in (0, 1))
    if len(known) == 1:
        return "one run each"
    if splits == {None}:
        return f"{len(known)} starts on the same data"
    if len(splits) == 1:
        return f"{len(known)} starts on one split of the data (split_seed={min(map(str, splits))})"
    if all(each.split == each.start for each in known):
        return f"{len(splits)} seeds, of the data and of the start alike"
    if len(starts) == 1:
        only = min(map(str, starts))
        return f"{len(splits)} splits of the data, one start on each (seed={only})"
    return f"{len(splits)} splits of the data, {len(starts)} starts on each"


def independent_gaps(gaps: Mapping[Any, float]) -> list[float]:
    """The differences that a test is of: of several splits their means over starts, else all.

    >>> independent_gaps({Repeat(0, 0): 1.0, Repeat(0, 1): 3.0, Repeat(1, 0): 5.0})
    [2.0, 5.0]
    """
    if not has_splits(gaps):
        return [*gaps.values()]
    by_split: dict[int | None, list[float]] = {}
    for repeat, gap in gaps.items():
        by_split.setdefault(as_repeat(repeat).split, []).append(gap)
    return [mean(each) for each in by_split.values()]


def resampled_t_test(gaps: Sequence[float], ratio: float | None) -> float | None:
    """The two-sided p-value of a mean difference of 0, over J splits.

    `ratio` is that of test to training samples where the same samples are split anew each time; 0:
    the differences are independent, and it is the paired t-test. None without different gaps, or
    where the ratio is not known.

    >>> round(resampled_t_test([2.0, 4.0, 3.0], 0.25), 4), round(resampled_t_test([2, 4, 3], 0), 4)
    (0.0591, 0.0351)
    """
    if len(set(gaps)) < 2 or ratio is None:
        return None
    from scipy.special import stdtr

    spread = stdev(gaps) * math.sqrt(1 / len(gaps) + ratio)
    return float(2 * stdtr(len(gaps) - 1, -abs(mean(gaps)) / spread)) if spread else None


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are: the smallest counts m times, the next m - 1, ...

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, so_far = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = so_far
    return adjusted
