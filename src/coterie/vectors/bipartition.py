"""Two groups out of one, by how alike vectors point."""

from __future__ import annotations

from math import inf

import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.vectors.gram import gram

LINKAGES = ("complete", "single")
ROUNDING = 1e-12  # vectors that are not farther apart than this are the same


def cosines(rows: Tensor) -> Tensor:
    """Cosine similarities [a, a] of rows [a, d], in double precision; a zero row has 0 with all.

    >>> cosines(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])).tolist()
    [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    products = gram(rows)
    norm = products.diagonal().sqrt()
    norm = torch.where(norm > 0, norm, 1.0)
    return (products / norm[:, None] / norm).clamp(-1, 1)


def bipartition(similarity: Tensor, method: str = "complete") -> tuple[Tensor, float]:
    """Two groups by agglomeration: a mask [a] of the smaller one, and the largest similarity
    across the two.

    `single` linkage has the least largest similarity that any two groups can have; `complete`
    linkage makes groups whose own members are alike. Groups of one size: the mask is that of the
    group without the first row.

    >>> alike = torch.tensor([[1.0, -0.5, 0.9], [-0.5, 1.0, -0.6], [0.9, -0.6, 1.0]])
    >>> bipartition(alike)
    (tensor([False,  True, False]), -0.5)
    """
    distance = 1 - (similarity + similarity.T) / 2
    tree = linkage(squareform(distance.numpy(), checks=False), method)
    # Not `fcluster`, which gives one group where the last two merges are equally far apart.
    side = torch.from_numpy(cut_tree(tree, n_clusters=2)[:, 0]) == 1
    smaller = side ^ side[0]  # without the first row
    if 2 * int(smaller.sum()) > len(smaller):
        smaller = ~smaller
    return smaller, float(similarity[smaller][:, ~smaller].max())


def contrast(similarity: Tensor, group: Tensor) -> float:
    """How far a group [a] and the rest lie apart, over how far their members lie apart.

    It is the Calinski-Harabasz index of the vectors at unit length: the spread between the two
    groups over that within, each for a degree of freedom. Around 1 two groups are as far apart as
    by chance, and somewhat more if they were looked for; it grows with their sizes if they are not.

    >>> alike = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> round(contrast(alike, torch.tensor([True, True, False])), 3)
    2.333
    """

    def spread(part: Tensor) -> float:  # squared distances from the mean, added up
        return float(part.diagonal().sum() - part.sum() / len(part))

    within = spread(similarity[group][:, group]) + spread(similarity[~group][:, ~group])
    between = spread(similarity) - within
    if between < ROUNDING:
        return 0.0
    return between * (len(similarity) - 2) / within if within > ROUNDING else inf
