"""What UIFCA's clients measure of all their samples: their scale, and their losses under models."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.fields import Loss, Statistic
from coterie.tasks.density import Density
from coterie.vectors.folds import WeightedRows


class Scales(NamedTuple):
    size: Statistic  # [m, 1] samples
    mean: Statistic  # [m, 1, f]
    square: Statistic  # [m, 1, 1] mean of |x|^2


class MeanLosses(NamedTuple):
    size: Statistic  # [m, j] samples
    loss: Loss  # [m, j, 1] mean loss of all samples under each model


@on_client(fold=WeightedRows)
def measure_samples(self: Any, cohort: Cohort) -> Scales:
    density: Any = cohort.task
    # In double precision: far from zero a scale is what is left of the difference of large numbers.
    points = [density.unscaled(x).double() for x, _ in cohort]
    size = cohort.size[:, None].to(points[0].dtype)
    mean = torch.stack([x.sum(0) / max(1, len(x)) for x in points])[:, None]
    square = torch.stack([x.square().sum() / max(1, len(x)) for x in points])
    return Scales(size, mean, square[:, None, None])


@on_client(fold=WeightedRows)
def measure_losses(self: Any, cohort: Cohort, models: Tensor) -> MeanLosses:
    losses = cohort.losses(models)
    size = cohort.size[:, None].expand(-1, len(models)).to(losses.dtype)
    return MeanLosses(size, (losses.sum(1) / size.clamp_min(1))[:, :, None])


def ask_scaling(step: Any, task: Density, clients: Clients) -> Tensor:
    """The centre [f] of all samples and their one standard deviation, behind one another.

    Nothing, [0], where the network does not scale its samples.
    """
    dtype = task.layout.dtype
    if not task.scales:
        return torch.zeros(0, dtype=dtype)
    fold = WeightedRows(1, "size", updates={"mean": task.features, "square": 1})
    ids, up = clients.run(step, fold=fold)
    if len(ids) == 0:
        raise CoterieError("no client answered during the start, so that samples have no scale")
    mean, square = up.sum("mean")[0] / up.weight, up.sum("square")[0] / up.weight
    scale = ((square - mean.square().sum()).clamp_min(0) / task.features).sqrt()
    return torch.cat([mean, torch.where(scale > 0, scale, 1.0)]).to(dtype)


def ask_mean_losses(step: Any, models: Tensor, clients: Clients) -> Tensor:
    """The mean loss [j] of all samples of all clients under each of models [j, d]."""
    fold = WeightedRows(len(models), "size", updates={"loss": 1})
    _, up = clients.run(step, fold=fold, models=models)
    return (up.sum("loss")[:, 0] / up.weights.clamp_min(1)).to(models.dtype)


def ask_constants(algorithm: Any, models: Tensor, clients: Clients) -> Tensor:
    """What is subtracted from losses under models [r, k, d]: 0, or their means [r, k]."""
    if algorithm.constant == "kept":
        return models.new_zeros(models.shape[:2])
    means = ask_mean_losses(algorithm.measure_losses, models.flatten(0, 1), clients)
    return means.view(models.shape[:2])


def largest(like: Tensor) -> float:
    """The largest number of a tensor's type, for a loss that is not known or infinite."""
    return float(torch.finfo(like.dtype).max)
