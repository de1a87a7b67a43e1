"""The local outlier factor of the rows of a matrix.

M. M. Breunig, H.-P. Kriegel, R. T. Ng, J. Sander: LOF: Identifying Density-Based Local Outliers,
SIGMOD 2000. A point's factor is how much denser its n nearest neighbours lie than the point itself:
about 1 inside a cluster, larger outside of all. The factors are scikit-learn's; distances are
computed here, in double precision, for models of one start are near to each other compared with
their length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.vectors.gram import gram

OUTLIER = 2.0  # a point with a larger factor is one, unless somebody says otherwise


def outlier_factors(points: Tensor, neighbours: int = 0) -> Tensor:
    """The local outlier factor [n] of each of points [n, p]; infinite for one that is not finite.

    `neighbours` are at most n - 1; 0: half of the points. A single point has factor 1.

    >>> line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
    >>> [round(factor, 2) for factor in outlier_factors(line, 2).tolist()]
    [1.0, 1.0, 1.0, 1.0, 65.0]
    """
    finite = points.isfinite().all(1)
    inside = points if bool(finite.all()) else points[finite]
    factors = torch.full((len(points),), torch.inf, dtype=torch.float64)
    factors[finite] = factors_of_distances(distances_between(inside), neighbours)
    return factors


def factors_of_distances(apart: Tensor, neighbours: int = 0) -> Tensor:
    """The local outlier factor [n] of points at Euclidean distances [n, n] from each other."""
    count = len(apart)
    if count < 2:
        return torch.ones(count, dtype=torch.float64)
    from sklearn.neighbors import LocalOutlierFactor  # a second that only those pay who need it

    near = max(1, min(neighbours or count // 2, count - 1))
    found = LocalOutlierFactor(n_neighbors=near, metric="precomputed").fit(apart.numpy())
    return -torch.from_numpy(found.negative_outlier_factor_)


def distances_between(points: Tensor) -> Tensor:
    """The Euclidean distances [n, n] of points [n, p], in double precision.

    They are those of inner products, seen from the point of median length: from a mean that a few
    huge points have carried away, all others would look alike.
    """
    if not len(points):
        return torch.zeros(0, 0, dtype=torch.float64)
    middle = torch.linalg.vector_norm(points, dim=1, dtype=torch.float64).argsort()[
        len(points) // 2
    ]
    products = gram(points, origin=points[middle].double())
    squares = products.diagonal()
    apart = (squares[:, None] + squares - 2 * products).clamp_min(0).sqrt()
    return apart.fill_diagonal_(0)
