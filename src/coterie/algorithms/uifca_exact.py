"""The exact fit of UIFCA's linear flows: one exchange in place of a cluster round's descent.

A linear flow is a Gaussian distribution. Its best fit to the samples of a set needs their count,
mean and second moments, which are sums over clients:

    client i, set k:   |S_{i,k}|,  sum u,  sum u u^T,  where u = (x - shift) / scale
    server:            mu = mean of u,  S = mean of u u^T - mu mu^T
                       S = (1 - a) S + a (tr S / f) I
                       A = S^(-1/2),  c = -A mu

Samples are centred before they are multiplied: far from zero S would be what rounding leaves.

The best fit alone keeps a sample in the set in which it already is, because it is part of that
set's S. Shrinkage a loosens that: it is 1 in the first cluster round, then 1/2, 1/4 and so on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import sample_sets
from coterie.core.clients import on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Loss, Statistic
from coterie.core.task import Task
from coterie.tasks.density import Density
from coterie.vectors.cluster_sums import ClusterSums
from coterie.vectors.folds import WeightedRows
from coterie.vectors.moments import second_moments, whitening


class SetMoments(NamedTuple):
    size: Statistic  # [m, r k] |S_{i,k}|
    mean: Statistic  # [m, r k, f] of the samples u in a set
    square: Statistic  # [m, r k, f f] mean of u u^T
    loss: Loss  # [m, r k, 1] mean loss of a set under its judge


@on_client(fold=WeightedRows)
def measure_sets(
    self: sample_sets.SetSettings,
    cohort: Cohort,
    judges: Tensor,
    constants: Tensor,
    chosen: Tensor,
    components: Tensor,
    number: Tensor,
    seed: Tensor,
    scaling: Tensor,
) -> SetMoments:
    cohort = sample_sets.fold_of_turn(self, cohort, number, seed)
    weight, loss = sample_sets.make_sets(self, cohort, judges, constants, chosen, components, seed)
    size = weight.sum(1).flatten(1)
    points = [(x.flatten(1) - scaling[:-1]) / scaling[-1] for x, _ in cohort]
    weights = [own[: len(x)].flatten(1) for own, x in zip(weight, points, strict=True)]
    total = torch.stack([w.T @ x for w, x in zip(weights, points, strict=True)])
    mean = sample_sets.divide(total, size[:, :, None])
    square = second_moments(points, weights)
    return SetMoments(size, mean, square, sample_sets.mean_of_sets(loss, weight, size))


def check_density(fit: str, task: Task) -> Density:
    """The task, which must be a density, and for exact fits that of a linear flow."""
    if not isinstance(task, Density):
        raise SettingError(
            f"UIFCA learns distributions: its task must be Density, got {type(task).__name__}"
        )
    if fit == "exact" and not task.is_linear_flow:
        raise SettingError(
            "`fit` of UIFCA must be descent for networks that are not linear-flow, got exact"
        )
    return task


def summed_moments(features: int) -> dict[str, str | int]:
    """The fields that are summed, with as many numbers as they have."""
    return {"mean": features, "square": features * features, "loss": 1}


def fit_flows(models: Tensor, up: ClusterSums, shrinkage: float, floor: float) -> Tensor:
    """The linear flows [r, k, d] that fit the sets best; one without samples stays as it was."""
    (r, k, _), weight = models.shape, up.weights[:, None]
    mean = sample_sets.divide(up.sum("mean"), weight)  # [r k, f]
    square = sample_sets.divide(up.sum("square"), weight).unflatten(1, (mean.shape[1], -1))
    A, c = whitening(mean, square, shrinkage, floor)
    fitted = torch.cat([A.flatten(1), c], 1).view(r, k, -1).to(models.dtype)
    whole = torch.cat([fitted, models[..., fitted.shape[-1] :]], -1)
    return torch.where((up.weights > up.floor).view(r, k, 1), whole, models)
