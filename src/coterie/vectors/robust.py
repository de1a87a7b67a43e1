"""Means that a minority of wrong rows cannot move far: pure functions on rows [n, d].

Each has a breakdown point: with f wrong rows among n it stays near the others. A mean inside a
cluster is meant; over several clusters they would keep the largest and forget the others.

    median            coordinate by coordinate (Yin et al., ICML 2018)
    trimmed           coordinate by coordinate, without the f smallest and largest (the same)
    geometric-median  the point with the least sum of distances (Pillutla et al., IEEE TSP 2022)
    krum              the row with the nearest neighbours (Blanchard et al., NeurIPS 2017)
    multi-krum        the mean of the n - f rows that Krum likes best (the same)
    bulyan            rows that Krum picks one by one, then a trimmed mean of these (El Mhamdi et
                      al., ICML 2018)
    clip              the mean of rows that are shortened to the median of their lengths

Rows that are not finite count as wrong wherever that makes a difference: none of them is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COLUMNS = 1024  # coordinates that products of rows are made of at a time
BLOCK_BYTES = 2**20  # of coordinates that are sorted at a time; they stay in a core's cache
WEISZFELD_STEPS = 100
NEAREST = 1e-6  # of the point in a step to a row, as a share of the median distance


def coordinate_median(rows: Tensor) -> Tensor:
    """The median of every coordinate, [d]; of an even number of rows the mean of the middle two.

    >>> coordinate_median(torch.tensor([[1.0, 9.0], [2.0, 8.0], [900.0, -900.0]])).tolist()
    [2.0, 8.0]
    """
    return coordinate_trimmed_mean(rows, (len(rows) - 1) // 2)


def coordinate_trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """The mean of every coordinate without its f smallest and f largest values, [d].

    >>> coordinate_trimmed_mean(torch.tensor([[1.0], [2.0], [6.0], [900.0]]), 1).tolist()
    [4.0]
    """
    values = rows.numpy()
    groups = [RowGroup(0, len(rows), f)]
    means = grouped_trimmed_means(lambda columns: values[:, columns], groups, rows.shape[1])
    return means[0].to(rows.dtype)


class RowGroup(NamedTuple):
    """Rows that follow each other, of which a trimmed mean is taken."""

    begin: int
    end: int
    f: int  # how many values are left out at each end


def grouped_trimmed_means(
    read: Callable[[slice], NDArray[Any]], groups: Sequence[RowGroup], d: int
) -> Tensor:
    """The trimmed mean of every coordinate in each group, [g, d], in double precision.

    `read(columns)` gives these coordinates of all rows, [n, w]; it is called by several threads.
    Values that are not a number count as the largest.
    """
    for n, f in ((group.end - group.begin, group.f) for group in groups):
        assert 0 <= 2 * f < n, f"of {n} rows at most {(n - 1) // 2} can be trimmed, got {f}"
    means = np.empty((len(groups), d))

    def reduce(columns: slice) -> None:
        # Side by side: NumPy sorts so many times faster than columns of a large matrix.
        values = np.array(read(columns).T, order="C")  # [w, n]
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are not finite
            for mean, (begin, end, f) in zip(means, groups, strict=True):
                values[:, begin:end].sort(axis=1)
                mean[columns] = values[:, begin + f : end - f].mean(1, dtype=np.float64)

    n = max(group.end for group in groups)
    for_each_block(reduce, d, max(1, BLOCK_BYTES // (8 * n)))
    return torch.from_numpy(means)


def for_each_block(work: Callable[[slice], None], d: int, width: int) -> None:
    """Do some work on blocks of so many of d columns, by as many threads as PyTorch has."""
    blocks = [slice(begin, min(begin + width, d)) for begin in range(0, d, width)]
    threads = min(torch.get_num_threads(), len(blocks))
    if threads < 2:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, blocks))


def geometric_median(rows: Tensor) -> Tensor:
    """The point with the least sum of Euclidean distances to the rows, by Weiszfeld's steps.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9e9, 9e9]])).round(
    ...     decimals=3
    ... ).tolist()
    [0.5, 0.5]
    """
    rows = finite_rows(rows)
    point = coordinate_median(rows).double()
    for _ in range(WEISZFELD_STEPS):
        distance = (rows - point).norm(dim=1).double()
        weight = 1 / distance.clamp_min(max(NEAREST * float(distance.median()), 1e-30))
        after = (weight / weight.sum()) @ rows.double()
        moved = float((after - point).norm())
        point = after
        if moved <= NEAREST * float(distance.median()):
            break
    return point.to(rows.dtype)


def krum(rows: Tensor, f: int) -> Tensor:
    """The row that is nearest to its n - f - 1 nearest neighbours, [d].

    >>> krum(torch.tensor([[0.0], [1.0], [1.5], [2.5], [99.0]]), 1).tolist()
    [1.0]
    """
    return rows[krum_scores(pairwise_squares(rows), f).argmin()]


def multi_krum(rows: Tensor, f: int) -> Tensor:
    """The mean of the n - f rows with the best scores of Krum, [d].

    >>> multi_krum(torch.tensor([[0.0], [1.0], [1.5], [2.5], [99.0]]), 1).tolist()
    [1.25]
    """
    best = krum_scores(pairwise_squares(rows), f).argsort(stable=True)[: len(rows) - f]
    return rows[best].double().mean(0).to(rows.dtype)


def bulyan(rows: Tensor, f: int) -> Tensor:
    """The trimmed mean of n - 2f rows that Krum picks, each from those that are left, [d].

    Of these, the n - 4f values nearest to the median count in every coordinate.
    """
    n = len(rows)
    check_tolerance("bulyan", n, f)
    distance, left = pairwise_squares(rows), torch.arange(n)
    picked: list[int] = []
    for _ in range(n - 2 * f):
        scores = krum_scores(distance[left][:, left], f, least=1)
        place = int(scores.argmin())
        picked.append(int(left[place]))
        left = torch.cat([left[:place], left[place + 1 :]])
    chosen = rows[picked]
    off = (chosen - coordinate_median(chosen)).abs()
    nearest = off.argsort(dim=0, stable=True)[: n - 4 * f]
    return chosen.gather(0, nearest).double().mean(0).to(rows.dtype)


def clipped_mean(rows: Tensor) -> Tensor:
    """The mean of rows [n, d], each shortened to at most the median of their lengths, [d].

    >>> clipped_mean(torch.tensor([[3.0], [-1.0], [600.0]])).tolist()
    [1.6666666269302368]
    """
    moved = finite_rows(rows)
    length = moved.norm(dim=1)
    limit = middle_value(length)
    scale = (limit / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(1.0)
    mean: Tensor = (scale.double() / len(moved)) @ moved.double()
    return mean.to(rows.dtype)


def middle_value(values: Tensor) -> Tensor:
    """The median of values [n]; of an even number the mean of the middle two."""
    found: Tensor = coordinate_median(values[:, None])[0]
    return found


def pairwise_squares(rows: Tensor) -> Tensor:
    """Squared Euclidean distances [n, n] of rows; a row that is not finite is infinitely far away.

    In double precision, block by block of columns, around the coordinate median, so that rows far
    from zero and near each other keep their digits.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    finite = rows.isfinite().all(1)
    centre = (
        coordinate_median(rows[finite]) if bool(finite.any()) else rows.new_zeros(rows.shape[1])
    )
    for begin in range(0, rows.shape[1], COLUMNS):
        block = rows[:, begin : begin + COLUMNS] - centre[begin : begin + COLUMNS]
        block = torch.where(finite[:, None], block, 0).double()
        total.addmm_(block, block.T)
    return distances_from_products(total, finite)


def distances_from_products(products: Tensor, finite: Tensor) -> Tensor:
    """Squared distances [n, n] from inner products [n, n] of rows; infinite where one is not."""
    length = products.diagonal()
    apart = (length[:, None] + length - 2 * products).clamp_min(0)
    apart[~finite] = torch.inf
    apart[:, ~finite] = torch.inf
    return apart.fill_diagonal_(0)


def krum_scores(distance: Tensor, f: int, least: int = 0) -> Tensor:
    """The sum of the squared distances [n, n] of each row to its n - f - 1 nearest others, [n].

    Krum's authors count n - f - 2 others; one more is usual since (Farhadkhani et al., ICML 2022).
    The score of a row that is not finite is infinite. With `least`, so many neighbours do, and
    there may be fewer rows than f asks for.
    """
    n = len(distance)
    if not least:
        check_tolerance("krum", n, f)
    others = distance.sort(1).values[:, 1:]  # without the row itself
    near = max(n - f - 1, min(least, n - 1))
    return others[:, :near].sum(1) if n > 1 else torch.zeros(n, dtype=distance.dtype)


def finite_rows(rows: Tensor) -> Tensor:
    """The rows that are finite, or all if none is."""
    finite = rows.isfinite().all(1)
    return rows if bool(finite.all()) or not bool(finite.any()) else rows[finite]


def least_rows(rule: str, f: int) -> int:
    """How many rows a rule needs to withstand f wrong ones.

    >>> least_rows("krum", 2), least_rows("bulyan", 2), least_rows("median", 2)
    (7, 11, 5)
    """
    return {"krum": 2 * f + 3, "multi-krum": 2 * f + 3, "bulyan": 4 * f + 3}.get(rule, 2 * f + 1)


def check_tolerance(rule: str, n: int, f: int) -> None:
    assert n >= least_rows(rule, f), f"{rule} of {n} rows cannot withstand {f} wrong ones"
