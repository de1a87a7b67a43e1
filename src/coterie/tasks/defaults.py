"""The task of a run: what an algorithm learns on a federation, with a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from coterie.core.errors import DataError, SettingError
from coterie.core.sample_kinds import sample_shape
from coterie.core.samples import Ragged
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.networks.flows import LinearFlow
from coterie.networks.gan import Gan
from coterie.tasks.classification import Classification
from coterie.tasks.codes import Codes, encodes
from coterie.tasks.density import Density, gives_log_probabilities
from coterie.tasks.regression import Regression
from coterie.tasks.token_classification import TokenClassification

SupervisedTask = Classification | Regression | TokenClassification
DefaultTask = SupervisedTask | Density | Codes
# The tasks that a network decides by what it gives, and one that does.
GIVEN_BY: dict[type, str] = {Density: "linear-flow", Codes: "gan"}


def default_task(federation: Federation, network: Any) -> DefaultTask:
    """The task of a federation's targets, with a network that a run can name.

    Real numbers are a regression, a sequence of labels per sample is a classification of tokens,
    all else one of samples. Whatever the targets, a network that gives one number per sample gives
    log-probabilities: that is a density; and one with generator, critic and encoder has codes, with
    a class for each output. What the network is told of padding is its own `padding`,
    if it has one.
    """
    samples = federation.train
    network = sized_network(network, federation)
    module = partial(network.module, sample_shape(samples.x), federation.outputs)
    padding = getattr(network, "padding", "lengths")
    options: dict[str, Any] = {"scale": federation.scale, "padding": padding}
    kind = task_kind(samples.y)
    own: dict[str, Any] = {}
    if kind is Regression and federation.schema is not None:
        own["target"] = federation.schema.target
    task = kind(module, **options, **own)
    if encodes(task.module):
        build = partial(network.module, sample_shape(samples.x))
        return Codes(build, classes=federation.outputs, **options)
    if gives_log_probabilities(task, samples.x):
        return Density(module, **options)
    return task


def sized_network(network: Any, federation: Federation) -> Any:
    """The network that suits clients of this size, where it goes by that.

    Nodes, which know only themselves, are told by the schema how many samples a client has.
    """
    if not hasattr(network, "for_samples"):
        return network
    rows = federation.schema.rows if federation.schema is not None else 0
    return network.for_samples(rows or int(federation.train.sizes.median()))


def weigh_classes(task: Task, federation: Federation, how: str) -> Task:
    """A classification with `balanced` weights: all classes count the same, and the mean is 1.

    They go by how often clients have each class to train on, summed up; nodes are told by the
    schema.
    """
    if how == "none":
        return task
    if not isinstance(task, Classification):
        raise SettingError(f"`class_weight` must be none where no classes are predicted, got {how}")
    schema = federation.schema
    counts = torch.tensor(schema.class_counts if schema is not None else ())
    if not len(counts):
        y = federation.train.y
        counts = y.sum(0) if y.dim() == 2 else y.bincount(minlength=federation.outputs)
    return task.with_class_weight(counts.sum() / (len(counts) * counts.clamp_min(1)))


def density_task(federation: Federation, default: Task) -> Task:
    """The default if it is a density; else that of a linear flow, in the precision of the other."""
    if isinstance(default, Density):
        return default
    task = default_task(federation, LinearFlow())
    return task.double() if default.layout.dtype == torch.float64 else task


def codes_task(federation: Federation, default: Task) -> Codes:
    """The default if it has codes; else that of `gan`, in the precision of the other."""
    if isinstance(default, Codes):
        return default
    task = default_task(federation, Gan())
    assert isinstance(task, Codes)
    return task.double() if default.layout.dtype == torch.float64 else task


def task_kind(y: Any) -> type[SupervisedTask]:
    """The kind of task that targets are of."""
    if isinstance(y, Ragged):
        return TokenClassification
    if y.is_floating_point():
        return Regression if y.dim() == 1 else Classification
    return Classification if y.dim() == 1 else TokenClassification


def algorithm_task(algorithm: Any, federation: Federation, default: Task) -> Task:
    """The task that an algorithm names, as `task(default, federation)`, or the default."""
    names_task = getattr(algorithm, "task", None)
    task: Task = default if names_task is None else names_task(default, federation)
    return task


def check_labelled(algorithm: Any, federation: Federation, task: Task) -> None:
    """Refuse to let an algorithm predict labels that are not there."""
    if task.predicts and not federation.labelled:
        raise DataError(
            f"{type(algorithm).__name__} learns to predict a label, but {federation.name} has "
            "none: name its column, as in label=outcome, or take an algorithm that clusters "
            "samples without one, such as k-fed or uifca"
        )


def prepare_task(
    algorithm: Any, federation: Federation, network: Any, named: str = ""
) -> tuple[Federation, Task]:
    """A federation as the algorithm sees it, and what it learns there, with one of `NETWORKS`.

    `named` is what a user calls that network, who asked for it: no other one takes its place.
    """
    default = default_task(federation, network)
    task = algorithm_task(algorithm, federation, default)
    needed = GIVEN_BY.get(type(task), "")
    if named and needed and type(task) is not type(default):
        raise SettingError(
            f"`network` must be one that {type(algorithm).__name__} can learn with, such as "
            f"{needed}, got {named}"
        )
    check_labelled(algorithm, federation, task)
    # Where nothing is predicted, labels that are classes are there to score the clusters by.
    if not task.predicts and federation.train.has_labels:
        federation = replace(federation, sample_clusters=True)
    return federation, task
