"""The task of a run: what an algorithm learns on a federation, with a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.tasks.centre import Centre
from coterie.tasks.classification import Classification
from coterie.tasks.regression import Regression


def default_task(federation: Federation, network: Any) -> Classification | Regression:
    """The task of a federation's targets: classes, or real numbers, with one of `NETWORKS`."""
    samples = federation.train
    module = partial(network.module, samples.x.shape[1:], federation.outputs)
    kind = Regression if samples.y.is_floating_point() else Classification
    return kind(module, scale=federation.scale)


def learns_centres(algorithm: Any) -> bool:
    """Whether the models of an algorithm are centres of samples, whatever the network."""
    return getattr(algorithm, "learns", "") == "centres"


def prepare_task(algorithm: Any, federation: Federation, network: Any) -> tuple[Federation, Task]:
    """A federation as the algorithm sees it, and what it learns there."""
    if not learns_centres(algorithm):
        return federation, default_task(federation, network)
    samples = federation.train
    # Nothing is predicted: labels that are classes are there to score the clusters by.
    if not samples.y.is_floating_point():
        federation = replace(federation, sample_clusters=True)
    return federation, Centre(samples.x[0].numel(), scale=federation.scale)
