"""What the scores of clients add up to, where nothing is told of single ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.task import MAY_MISS, Task, summary_metrics


class SummedScores(NamedTuple):
    """What the scores of clients add up to, where nothing is told of single ones."""

    total: Tensor  # [s] the task's sums
    clients: Tensor  # [k] how many are in each cluster
    metrics: Tensor  # [j, k] over those in it, the sum of each metric that the task has
    known: Tensor  # [j, k] of how many of them that is

    def summary(self, task: Task) -> dict[str, float]:
        """The metrics that these sums make of all samples, and means over clients."""
        names = task.metrics(self.total[None])
        sums, counts = self.metrics.sum(1).tolist(), self.known.sum(1).tolist()
        means = {
            name: total / count
            for name, total, count in zip(names, sums, counts, strict=True)
            if count
        }
        return summary_metrics(task, self.total, means)


def sum_by_cluster(values: Tensor, cluster: Tensor, k: int) -> Tensor:
    """The sum over the clients of each cluster [k] of their values [m]."""
    return torch.zeros(k, dtype=torch.float64).index_add(0, cluster, values.double())


def sum_scores(task: Task, scores: Tensor, cluster: Tensor, k: int) -> SummedScores:
    """What the scores [m, s] of clients add up to that are in `cluster` [m] of k."""
    found = task.metrics(scores)
    # A client of one class or target has no AUC or R2; whatever else is not a number is told.
    missing = [each.isnan() & (name in MAY_MISS) for name, each in found.items()]
    pairs = list(zip(found.values(), missing, strict=True))
    sums = [sum_by_cluster(each.masked_fill(gone, 0), cluster, k) for each, gone in pairs]
    known = [torch.bincount(cluster[~gone], minlength=k) for _, gone in pairs]
    clients = torch.bincount(cluster, minlength=k)
    return SummedScores(scores.sum(0), clients, torch.stack(sums), torch.stack(known))
