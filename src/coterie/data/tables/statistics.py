"""What clients say about a column, and what follows when it is added up.

No row leaves a client. For a column of numbers a client says its count of known values, their sum,
and, once all have been told the mean, the sum and the sum of squares of the distances to it: that
second round is there because squares of far-off numbers such as dates drown the variance. For a
column of text it says how often it has each category. The server adds these up and knows no more.

Rows lie one client after another; `offsets` [m + 1] says where each begins. All clients have rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
POWERS = 30  # steps of a power iteration: the eigenvalue is then known to a few per cent


class ClientSums(NamedTuple):
    """What each client says about a column of numbers."""

    known: Floats  # [m] known values
    total: Floats  # [m] their sum
    squares: Floats  # [m] their sum of squares


class Moments(NamedTuple):
    """What all clients' sums amount to."""

    known: float  # how many values
    mean: float
    deviation: float  # divided by the count, not by one less

    @property
    def constant(self) -> bool:
        """Whether all known values are the same, or none is known; up to rounding."""
        return not self.deviation > 1e-12 * abs(self.mean)


def client_sums(values: Floats, offsets: NDArray[np.int64], about: float = 0.0) -> ClientSums:
    """Each client's count, sum and sum of squares of `values - about`, without missing ones."""
    known = ~np.isnan(values)
    shifted = np.where(known, values - about, 0.0)
    begin = offsets[:-1]
    return ClientSums(
        np.add.reduceat(known.astype(np.float64), begin),
        np.add.reduceat(shifted, begin),
        np.add.reduceat(shifted * shifted, begin),
    )


def column_moments(values: Floats, offsets: NDArray[np.int64]) -> Moments:
    """Mean and deviation of a column from the sums of its clients, in two rounds.

    >>> column_moments(np.array([1.0, 3.0, np.nan, 5.0]), np.array([0, 2, 4]))
    Moments(known=3.0, mean=3.0, deviation=1.632993161855452)
    """
    first = client_sums(values, offsets)
    count = float(first.known.sum())
    if count == 0:
        return Moments(0.0, 0.0, 0.0)
    rough = float(first.total.sum()) / count
    second = client_sums(values, offsets, about=rough)
    return moments_about(count, rough, float(second.total.sum()), float(second.squares.sum()))


def moments_about(count: float, rough: float, total: float, squares: float) -> Moments:
    """Mean and deviation of `count` values from sums of their distances to a `rough` mean.

    >>> moments_about(3, 2.0, 3.0, 11.0)
    Moments(known=3, mean=3.0, deviation=1.632993161855452)
    """
    slip = total / count  # what rounding did to the mean
    return Moments(count, rough + slip, max(squares / count - slip * slip, 0.0) ** 0.5)


def largest_second_moment(x: NDArray[np.float32], enough: float) -> float:
    """The largest eigenvalue of the mean of x x' over a client's rows [n, d], by power iteration.

    Where it cannot exceed `enough`, a bound of it will do.

    >>> round(largest_second_moment(np.array([[1.0, 2.0], [2.0, 4.0]], np.float32), 0.0), 4)
    12.5
    """
    rows = x.astype(np.float64)
    trace = float(np.square(rows).sum() / len(rows))
    if trace <= enough:
        return trace
    gram = (rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows) / len(rows)
    vector = gram[:, np.argmax(np.diagonal(gram))]
    for _ in range(POWERS):
        vector = gram @ (vector / np.linalg.norm(vector))
    return float(np.linalg.norm(vector))


def category_counts(codes: NDArray[np.int64], offsets: NDArray[np.int64], categories: int) -> Any:
    """How often each client has each category, a sparse matrix [m, categories + 1]; last: missing.

    >>> category_counts(np.array([0, 0, 1, -1]), np.array([0, 3, 4]), 2).toarray().tolist()
    [[2, 1, 0], [0, 0, 1]]
    """
    clients = len(offsets) - 1
    from scipy.sparse import coo_matrix  # a table of numbers alone needs none

    owner = np.repeat(np.arange(clients), np.diff(offsets))
    place = np.where(codes < 0, categories, codes)
    ones = np.ones(len(codes), np.int64)
    return coo_matrix((ones, (owner, place)), shape=(clients, categories + 1)).tocsr()


def total_counts(counts: Any) -> NDArray[np.int64]:
    """The clients' counts of categories added up, [categories + 1]."""
    total: NDArray[np.int64] = np.asarray(counts.sum(axis=0)).ravel()
    return total
