"""k-means on the rows of a matrix, plain or with trimmed means.

Written here although scikit-learn has k-means: trimmed means need a loop of their own, of which
the plain one is a special case; starts are drawn from the run's seeds, in an order of the points
that does not depend on how clients are numbered; a centre that nobody is near stays where it is.
From the same starts both gave the same clusters in all 944 calls that were compared. Everything is
computed in double precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.vectors.gram import gram
from coterie.vectors.robust import coordinate_trimmed_mean

ITERATIONS = 100  # of Lloyd's algorithm, if it does not end before
BLOCK = 2**22  # numbers that are converted to doubles at a time


class Clustering(NamedTuple):
    """What k-means gives."""

    centres: Tensor  # [k, p]
    cluster: Tensor  # [n]
    spread: float  # mean squared distance of a point to its centre


def kmeans(
    points: Tensor,
    k: int,
    seed: int,
    *,
    tries: int = 20,
    trim: float = 0.0,
    iterations: int = ITERATIONS,
) -> Clustering:
    """The tightest of `tries` clusterings of points [n, p], each from starts of its own.

    Under the same seed the same points give the same clusters, whatever their order. With `trim`,
    centres are trimmed means. Each clustering makes at most so many iterations. There must be at
    least k points.

    >>> found = kmeans(torch.tensor([[0.0], [1.0], [9.0]]), 2, seed=0)
    >>> found.centres.flatten().sort().values.tolist(), round(found.spread, 3)
    ([0.5, 9.0], 0.167)
    """
    assert len(points) >= k, "k-means needs a point for each cluster"
    order = canonical_order(points, seed)
    # Trimming looks at coordinates; plain k-means only at distances, which few coordinates keep.
    space = (points if trim else compress(points))[order]

    def attempt(number: int) -> Clustering:
        begun = draw_far_points(space, k, seeds.generator(seed, "k-means", number))
        return lloyd(space, begun, trim=trim, iterations=iterations)

    best = min(map(attempt, range(tries)), key=lambda clustering: clustering.spread)
    cluster = torch.empty_like(best.cluster)
    cluster[order] = best.cluster
    centres = centroids(points, cluster, points.new_zeros(k, points.shape[1]), trim)
    return Clustering(centres, cluster, best.spread)


def lloyd(
    points: Tensor, centres: Tensor, *, trim: float = 0.0, iterations: int = ITERATIONS
) -> Clustering:
    """Lloyd's algorithm from given centres [k, p]: nearest centre, mean of the members, again.

    It ends when no point changes its cluster. A centre that nobody is near stays where it is.

    >>> lloyd(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.0], [1.0]])).cluster.tolist()
    [0, 0, 1]
    """
    cluster = torch.full((len(points),), -1, device=points.device)
    for _ in range(iterations):
        now = nearest_centre(points, centres)
        if torch.equal(now, cluster):
            break
        cluster = now
        centres = centroids(points, cluster, centres, trim)
    apart = points.double() - centres.double()[cluster]
    return Clustering(centres, cluster, float(apart.square().sum(1).mean()))


def draw_far_points(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k of the points, far from each other: k-means++.

    The first is drawn at random, each next one with a probability in proportion to its squared
    distance to the nearest of those before.
    """
    chosen = [int(torch.randint(len(points), (), generator=generator, device="cpu"))]
    best = points.new_full((len(points),), torch.inf, dtype=torch.float64)
    while len(chosen) < k:
        best = torch.minimum(best, squared_distances(points, points[chosen[-1:]])[:, 0])
        reached = best.cumsum(0)
        draw = torch.rand((), generator=generator, dtype=torch.float64, device="cpu") * reached[-1]
        place = int(torch.searchsorted(reached, draw, right=True))
        chosen.append(min(place, len(points) - 1))
    return points[chosen]


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre [k, p] of each point [n, p] in Euclidean distance, [n]."""
    return squared_distances(points, centres).nan_to_num(nan=torch.inf).argmin(1)


def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared Euclidean distances [n, k] of points [n, p] and centres [k, p].

    Differences are squared one by one: models of one start are so near to each other, compared with
    their length, that the usual |x|^2 - 2 xc + |c|^2 would lose the digits that matter.
    """
    rows = max(1, BLOCK // max(1, points.shape[1]))
    far = centres.double()
    exact = "donot_use_mm_for_euclid_dist"
    blocks = [torch.cdist(x.double(), far, compute_mode=exact) for x in points.split(rows)]
    return torch.cat(blocks).square() if blocks else far.new_zeros(0, len(centres))


def centroids(points: Tensor, cluster: Tensor, empty: Tensor, trim: float = 0.0) -> Tensor:
    """The mean of the points of each cluster [k, p]; an empty one takes its row of `empty`."""
    columns = max(1, BLOCK // max(1, len(points)))
    filled = torch.bincount(cluster, minlength=len(empty)) > 0
    centres = empty.clone()
    for j in filled.nonzero().flatten().tolist():
        blocks = [trimmed_centre(x[cluster == j], trim) for x in points.split(columns, 1)]
        centres[j] = torch.cat(blocks)
    return centres


def trimmed_centre(points: Tensor, trim: float) -> Tensor:
    """The mean of points [n, p] without the share `trim` at each end, coordinate by coordinate.

    >>> trimmed_centre(torch.tensor([[0.0], [1.0], [2.0], [99.0]]), 0.25).tolist()
    [1.5]
    """
    drop = int(trim * len(points))
    return coordinate_trimmed_mean(points, drop) if drop else points.mean(0, dtype=torch.float64)


def compress(points: Tensor) -> Tensor:
    """Points [n, p] in at most n coordinates with the same distances, in double precision.

    n points span n - 1 dimensions. Twenty clusterings of models with millions of parameters so cost
    one product of the matrix with itself.
    """
    n, p = points.shape
    middle = points.mean(0, dtype=torch.float64)
    if p <= n:
        return points.double() - middle
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(gram(points, origin=middle))
    return vectors * values.clamp_min(0).sqrt()


def canonical_order(points: Tensor, seed: int) -> Tensor:
    """An order of points [n, p] that does not depend on how they are numbered, [n].

    They are lined up along a random direction.
    """
    generator = seeds.generator(seed, "direction")
    direction = torch.randn(points.shape[1], generator=generator, device="cpu")
    return (points @ direction.to(points)).argsort(stable=True)
