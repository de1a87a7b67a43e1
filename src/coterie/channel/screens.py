"""Screens: whose update the server leaves out before anything is averaged or clustered.

A screen looks at all clients of a call together, whatever their clusters. Adversaries who are the
majority of one cluster, where no robust mean helps, are still a minority of all.

    norm   who moved more than `limit` times as far as the median of all clients
    lof    whose local outlier factor is above `limit` (vectors/outlier_factor.py)

An excluded client has not answered, as far as the algorithm can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.channel.displacements import (
    Displaced,
    displaced_fields,
    displacement_blocks,
    displacement_norms,
)
from coterie.core.clients import Call
from coterie.vectors.outlier_factor import OUTLIER, factors_of_distances
from coterie.vectors.robust import distances_from_products

LIMITS = {"norm": 3.0, "lof": OUTLIER}
FEWEST = 3  # clients of whom one can be told from the others


@dataclass
class Screen:
    """Excludes clients by what they send, and remembers whom."""

    kind: str  # norm or lof
    limit: float = 0.0  # 0: that of LIMITS
    of: str = "updates"  # what lof compares: updates or models
    neighbours: int = 0  # of lof; 0: half of the clients
    excluded: list[int] = field(default_factory=list)  # since somebody last emptied it

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        fields = displaced_fields(call, ids, upload)
        if len(ids) < FEWEST or not fields:
            return ids, upload
        limit = self.limit or LIMITS[self.kind]
        if self.kind == "norm":
            fine = norms_within(displacement_norms(fields), limit)
        else:
            finite, distance = client_distances(fields, moved=self.of == "updates")
            fine = finite.clone()
            fine[finite] = factors_of_distances(distance, self.neighbours) <= limit
        if bool(fine.all()):
            return ids, upload
        self.excluded += ids[~fine].tolist()
        return ids[fine], type(upload)(*(value[fine] for value in upload))


def norms_within(norms: Tensor, limit: float) -> Tensor:
    """Which of norms [a] are at most `limit` times their median; one that is not finite is not.

    >>> norms_within(torch.tensor([1.0, 2.0, 3.0, 7.0, torch.nan]), 3.0).tolist()
    [True, True, True, False, False]
    """
    finite = norms.isfinite()
    if not bool(finite.any()):
        return finite
    # The lower of the middle two: where half of the clients are wrong it is still a right one's.
    return finite & (norms <= limit * norms[finite].median())


def client_distances(fields: list[Displaced], *, moved: bool) -> tuple[Tensor, Tensor]:
    """Who sent finite numbers only [a], and the Euclidean distances [b, b] between these clients.

    The distances are between what they sent, or between how they moved.
    """
    finite = torch.stack([field.value.isfinite().all(1) for field in fields]).all(0)
    count = int(finite.sum())
    products = torch.zeros(count, count, dtype=torch.float64)
    for block in displacement_blocks(fields, moved=moved):
        block = block[finite].double()
        if count:  # around the median of all, so that what lies far from zero keeps its digits
            block = block - block.median(0).values
        products.addmm_(block, block.T)
    return finite, distances_from_products(products, torch.ones(count, dtype=torch.bool)).sqrt()
