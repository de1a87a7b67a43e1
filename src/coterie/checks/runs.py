"""Short runs of an algorithm, and how two of them are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.checks.small import task_for
from coterie.core.algorithm import traits_of
from coterie.core.local_training import GradientSettings
from coterie.data.federation import Federation
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings
from coterie.experiment.simulate import simulate

ROUNDS = 4


def short_run(algorithm: Any, data: Federation, **settings: Any) -> Run:
    """A short run."""
    return simulate(algorithm, data, task_for(algorithm), **{"rounds": ROUNDS, **settings})


def started_run(algorithm: Any, data: Federation, **settings: Any) -> Run:
    """A run of one round that has begun, and has made no round yet."""
    run = Run(algorithm, data, task_for(algorithm), RunSettings(rounds=1, **settings))
    run.training.begin()
    return run


def assert_same(one: Run, two: Run, *, exactly: bool = False) -> None:
    """Two runs ended alike: clusters equal, models and numbers equal or equal to rounding."""
    if one.serving.mixture is not None and two.serving.mixture is not None:
        assert_close(one.serving.mixture, two.serving.mixture, "shares")
    else:
        assert torch.equal(one.clusters, two.clusters), "clusters differ"
    if one.labels is not None and two.labels is not None:
        assert torch.equal(one.labels, two.labels), "clusters of samples differ"
    if exactly:
        assert torch.equal(one.models, two.models), "models differ in some bit"
        assert one.metrics == two.metrics, "metrics differ in some bit"
    assert_close(one.models, two.models, "models")


def serving_models(run: Run) -> Tensor:
    """The model that serves each client, [m, d]; the mean of those that are mixed."""
    if run.serving.mixture is not None:
        return run.serving.mixture.to(run.models.dtype) @ run.models
    return run.models if run.serving.adapt is not None else run.models[run.clusters]


def assert_close(one: Tensor, two: Tensor, what: str) -> None:
    apart = float((one - two).abs().max())
    scale = max(1.0, float(two.abs().max()))
    limit = 1e-9 if two.dtype == torch.float64 else 1e-3 * scale
    assert apart < limit, f"{what} differ by {apart:.3g}"


def with_one_cluster(algorithm: Any) -> Any:
    """The algorithm with a single cluster, if it has a setting for that."""
    setting = traits_of(algorithm).clusters
    return replace(algorithm, **{setting: 1}) if setting else algorithm


def full_batch(algorithm: Any) -> Any:
    """The algorithm without mini-batches, which are drawn by client id."""
    return replace(algorithm, batch=0) if isinstance(algorithm, GradientSettings) else algorithm
