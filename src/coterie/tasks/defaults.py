"""The task of a run: what an algorithm learns on a federation, with a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression


def default_task(federation: Federation, network: Any) -> Classification | Regression:
    """The task of a federation's targets: classes, or real numbers, with one of `NETWORKS`."""
    samples = federation.train
    module = partial(network.module, samples.x.shape[1:], federation.outputs)
    kind = Regression if samples.y.is_floating_point() else Classification
    return kind(module, scale=federation.scale)


def algorithm_task(algorithm: Any, federation: Federation, default: Task) -> Task:
    """The task that an algorithm names, as `task(default, federation)`, or the default."""
    names_task = getattr(algorithm, "task", None)
    task: Task = default if names_task is None else names_task(default, federation)
    return task


def prepare_task(algorithm: Any, federation: Federation, network: Any) -> tuple[Federation, Task]:
    """A federation as the algorithm sees it, and what it learns there, with one of `NETWORKS`."""
    task = algorithm_task(algorithm, federation, default_task(federation, network))
    # Where nothing is predicted, labels that are classes are there to score the clusters by.
    if not task.predicts and not federation.train.y.is_floating_point():
        federation = replace(federation, sample_clusters=True)
    return federation, task
