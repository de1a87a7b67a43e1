"""The outlier filter: models and updates that are far larger than usual are refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.fields import Role, roles
from coterie.flower.replies import NodeReply
from coterie.vectors.cluster_sums import PartialSums, block_origins


class OutlierFilter:
    """Refuses vectors that are far larger than those that clients usually send.

    Uploads are judged client by client. What a node has folded is judged as a whole, by the largest
    of its clusters' means, which are models or updates like any other.

    limit  how many times the usual norm a vector may have; 0: any
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.usual_norm: dict[tuple[str, str], float] = {}  # of a field, by step and field

    def find_usual(self, label: str, field: str, norms: list[Tensor]) -> list[Tensor]:
        """Which of the vectors with these norms, reply by reply, are no outliers."""
        everybody = torch.cat([torch.zeros(0, dtype=torch.float64), *norms])
        if not self.limit or not len(everybody):
            return [torch.ones_like(norm, dtype=torch.bool) for norm in norms]
        median, before = float(everybody.median()), self.usual_norm.get((label, field))
        usual = median if before is None else max(before, median)
        if usual and (before is None or len(everybody) > 2):
            self.usual_norm[label, field] = usual
        return [norm <= self.limit * usual if usual else norm >= 0 for norm in norms]


def judged_fields(upload: type) -> list[str]:
    """The fields of an upload that are models or updates."""
    return [name for name, role in roles(upload).items() if role in (Role.MODEL, Role.UPDATE)]


def vector_norms(reply: NodeReply, field: str, fold: Any, sent: dict[str, Any]) -> Tensor | None:
    """The norm of a field, of each client [a] or of a folded reply [1]; None if it has none."""
    if isinstance(reply.total, PartialSums):
        return mean_norm(reply.total, field, fold, sent)
    value: Tensor = getattr(reply.upload, field)
    return value.flatten(1).double().norm(dim=1) if value[0].numel() > 1 else None


def mean_norm(total: PartialSums, field: str, fold: Any, sent: dict[str, Any]) -> Tensor | None:
    """The largest norm [1] of the mean of a field in a cluster, of those who have weight."""
    filled = total.weight > 0
    if field not in total.sums or total.sums[field].shape[1] < 2 or not bool(filled.any()):
        return None
    mean = total.sums[field][filled] / total.weight[filled][:, None]
    origin = block_origins(fold, sent)[field]
    if origin is not None:
        mean = mean + origin[filled]
    largest: Tensor = mean.norm(dim=1).amax()
    return largest.view(1)
