"""The task of a run: what an algorithm learns on a federation, with a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from coterie.core.errors import DataError
from coterie.core.samples import Ragged, sample_shape
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.tasks.centre import Centre
from coterie.tasks.classification import Classification
from coterie.tasks.network import kinds_text
from coterie.tasks.regression import Regression
from coterie.tasks.token_classification import TokenClassification

DefaultTask = Classification | Regression | TokenClassification


def default_task(federation: Federation, network: Any) -> DefaultTask:
    """The task of a federation's targets, with a network that a run can name.

    Real numbers are a regression, a sequence of labels per sample is a classification of tokens,
    all else one of samples. What the network is told of padding is its own `padding`, if it has
    one.
    """
    samples = federation.train
    module = partial(network.module, sample_shape(samples.x), federation.outputs)
    padding = getattr(network, "padding", "lengths")
    return task_kind(samples.y)(module, scale=federation.scale, padding=padding)


def task_kind(y: Any) -> type[DefaultTask]:
    """The kind of task that targets are of."""
    if isinstance(y, Ragged):
        return TokenClassification
    if y.is_floating_point():
        return Regression if y.dim() == 1 else Classification
    return Classification if y.dim() == 1 else TokenClassification


def learns_centres(algorithm: Any) -> bool:
    """Whether the models of an algorithm are centres of samples, whatever the network."""
    return getattr(algorithm, "learns", "") == "centres"


def prepare_task(algorithm: Any, federation: Federation, network: Any) -> tuple[Federation, Task]:
    """A federation as the algorithm sees it, and what it learns there."""
    if not learns_centres(algorithm):
        return federation, default_task(federation, network)
    samples = federation.train
    if not isinstance(samples.x, Tensor):
        raise DataError(
            f"{type(algorithm).__name__} finds centres of samples that are one tensor each, got "
            f"{kinds_text(samples.x)}"
        )
    # Nothing is predicted: labels that are classes are there to score the clusters by.
    if not samples.y.is_floating_point():
        federation = replace(federation, sample_clusters=True)
    return federation, Centre(samples.x[0].numel(), scale=federation.scale)
