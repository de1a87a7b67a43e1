"""Local outlier factors: how much lonelier a row is than its neighbours.

M. Breunig, H.-P. Kriegel, R. Ng, J. Sander: LOF: Identifying Density-Based Local Outliers, SIGMOD
2000. The factor of a row inside a cluster is about 1, so that a threshold of 1 would leave out half
of all rows; that of a row on its own is larger.
"""

from __future__ import annotations

import torch
from sklearn.neighbors import LocalOutlierFactor
from torch import Tensor


def outlier_factors(distance: Tensor, neighbours: int) -> Tensor:
    """The local outlier factor [n] of rows with distances [n, n], not squared.

    `neighbours` is cut to n - 1. Rows at an infinite distance, those that are not finite, have an
    infinite factor and are nobody's neighbours.

    >>> places = torch.tensor([0.0, 1.0, 2.0, 3.0, 50.0])
    >>> factors = outlier_factors((places[:, None] - places).abs(), 2)
    >>> [round(factor, 1) for factor in factors.tolist()]
    [1.0, 1.0, 1.0, 1.0, 31.7]
    """
    factors = torch.full((len(distance),), torch.inf, dtype=torch.float64)
    finite = torch.nonzero(distance.isfinite().sum(1) > 1).flatten()
    if len(finite) < 2:
        return torch.ones_like(factors)
    count = max(1, min(neighbours, len(finite) - 1))
    found = LocalOutlierFactor(n_neighbors=count, metric="precomputed")
    found.fit(distance[finite][:, finite].double().numpy())
    factors[finite] = torch.from_numpy(-found.negative_outlier_factor_)
    return factors
