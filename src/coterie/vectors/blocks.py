"""Blocks of points that are drawn with replacement: the bootstrap median of means.

C. Brunet-Saumard, E. Genetay, A. Saumard: K-bMOM: a robust Lloyd-type clustering algorithm based on
bootstrap median-of-means, 2022. Most of many small blocks have no outlier in them, so that a block
whose risk is in the middle of all is a good one.
"""

from __future__ import annotations

from math import floor, inf, log

import torch
from torch import Tensor


def safe_block_size(outliers: float) -> float:
    """The largest block of which most have no outlier, if these have so large a share of all.

    That is the largest n with (1 - outliers)^n > 1/2; there is no bound without outliers.

    >>> [safe_block_size(share) for share in (0.05, 0.1, 0.25, 0.0)]
    [13, 6, 2, inf]
    """
    return floor(log(2) / -log(1 - outliers)) if outliers else inf


def draw_blocks(count: int, blocks: int, size: int, generator: torch.Generator) -> Tensor:
    """The places [blocks, size] of points among `count`, drawn with replacement."""
    return torch.randint(count, (blocks, size), generator=generator)


def draw_blocks_by_cluster(
    cluster: Tensor, blocks: int, size: int, generator: torch.Generator
) -> Tensor:
    """The places [blocks, about size] of points in clusters [n], equally many of each cluster.

    Clusters without points are left out; of the others each has at least one.

    >>> three = draw_blocks_by_cluster(torch.tensor([0, 0, 0, 2]), 5, 6, torch.Generator())
    >>> three.shape, (three == 3).sum(1).tolist()
    (torch.Size([5, 6]), [3, 3, 3, 3, 3])
    """
    groups = [torch.nonzero(cluster == j).flatten() for j in cluster.unique().tolist()]
    each = max(1, size // len(groups))
    drawn = [places[draw_blocks(len(places), blocks, each, generator)] for places in groups]
    return torch.cat(drawn, 1)


def median_place(values: Tensor) -> int:
    """Where the median of values [n] is, the lower of two in the middle.

    >>> median_place(torch.tensor([5.0, 1.0, 9.0, 3.0]))
    3
    """
    return int(values.argsort(stable=True)[(len(values) - 1) // 2])
