"""The Davies-Bouldin index: how alike each cluster is to the one that it is most alike.

D. Davies, D. Bouldin: A Cluster Separation Measure, IEEE TPAMI 1979. Lower is better.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def davies_bouldin_of_blocks(blocks: Iterable[Tensor], cluster: Tensor) -> float | None:
    """The mean over clusters j of the largest (S_i + S_j) / D_ij; None of fewer than two clusters.

    `blocks` are the columns [n, w] of rows one after another, `cluster` [n] is where these are. S
    is the mean distance of a cluster's rows to their mean, D the distance of two means; the index
    is infinite where two are the same.

    >>> rows = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    >>> davies_bouldin_of_blocks([rows], torch.tensor([0, 0, 1, 1]))  # (1 + 2) / 11
    0.2727272727272727
    """
    place = cluster.unique(return_inverse=True)[1]
    k = int(place.max()) + 1 if len(place) else 0
    if k < 2:
        return None
    sizes = torch.bincount(place).double()
    spread, apart = torch.zeros(len(place), dtype=torch.float64), torch.zeros(k, k).double()
    for block in blocks:
        rows = block.double()
        means = torch.zeros(k, rows.shape[1]).double().index_add(0, place, rows) / sizes[:, None]
        spread += (rows - means[place]).square().sum(1)
        apart += torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist").square()
    within = torch.zeros(k).double().index_add(0, place, spread.sqrt()) / sizes
    alike = (within[:, None] + within) / apart.sqrt()
    alike.fill_diagonal_(-1)
    return float(alike.nan_to_num(nan=torch.inf).amax(1).mean())
