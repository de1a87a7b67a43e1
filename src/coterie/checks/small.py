"""What the checks run on: a small federation and its network, or a user's own."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.algorithm import least_samples
from coterie.core.samples import as_batch
from coterie.core.task import Task
from coterie.data.federation import Federation, Samples
from coterie.tasks import Classification
from coterie.tasks.defaults import algorithm_task

FEATURES, CLASSES = 5, 3
RAGGED = [1, 3, 17, 8, 2, 30, 8, 5]


class Case(NamedTuple):
    """What the checks run on: the small federation and its network, or a user's own."""

    federation: Federation | None = None
    task: Task | None = None


BUILT_IN = Case()
CASE: ContextVar[Case] = ContextVar("CASE", default=BUILT_IN)


def small_federation(sizes: list[int] | None = None, order: Tensor | None = None) -> Federation:
    """A small federation of two hidden groups, which name the classes differently.

    Or one of a user's own data, if that is what the checks run on, with so many samples or less.
    """
    sizes = [12] * len(RAGGED) if sizes is None else sizes
    own = CASE.get().federation
    if own is not None:
        return small_part(own, sizes, order)
    direction = torch.randn(FEATURES, CLASSES, generator=seeds.generator(0, "direction")).double()
    train, test = [], []
    for i, size in enumerate(sizes):
        x = torch.randn(size + 3, FEATURES, generator=seeds.generator(0, "x", i)).double()
        y = ((x @ direction).argmax(1) + i % 2) % CLASSES
        train.append((x[:size], y[:size]))
        test.append((x[size:], y[size:]))
    cluster = torch.arange(len(sizes)) % 2
    if order is not None:
        train, test = [train[i] for i in order], [test[i] for i in order]
        cluster = cluster[order]
    return Federation(Samples.of(train), Samples.of(test), cluster, sample_clusters=True)


def ragged_sizes(algorithm: Any) -> list[int]:
    """Very different numbers of samples, none too small for the algorithm."""
    return [max(least_samples(algorithm), size) for size in RAGGED]


def small_part(federation: Federation, sizes: list[int], order: Tensor | None = None) -> Federation:
    """The first clients of a federation, in an order, with at least 3 samples if they have them."""
    count = min(len(sizes), len(federation))
    chosen = list(range(count)) if order is None else order.tolist()
    whole, held_out = federation.test is None or federation.unseen, federation.validation
    return replace(
        federation,
        train=cut_samples(federation.train, chosen, [max(3, size) for size in sizes]),
        test=None if whole or federation.test is None else cut_samples(federation.test, chosen),
        validation=None if held_out is None else cut_samples(held_out, chosen),
        cluster=None if federation.cluster is None else federation.cluster[chosen],
        unseen=False,
        test_cluster=None,
        clients=tuple(federation.clients[i] for i in chosen) if federation.clients else (),
    )


def cut_samples(samples: Samples, clients: list[int], most: list[int] | None = None) -> Samples:
    """The samples of some clients, of client i at most `most[i]`."""
    parts = []
    for i in clients:
        begin, end = samples.offsets[i : i + 2].tolist()
        parts.append(torch.arange(begin, end if most is None else min(end, begin + most[i])))
    return Samples.select(samples.x, samples.y, parts)


def network_draws(task: Task, federation: Federation) -> bool:
    """Whether a network draws when it is trained, as dropout does."""
    module = copy.deepcopy(task.module).train()
    x = as_batch(task.inputs(federation.train.x[:4]))
    outputs = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            outputs.append(module(*task.arguments(x)))
    return not torch.equal(*outputs)


def small_task() -> Classification:
    """A small network in double precision, so that rounding cannot hide or feign a difference."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()

    return Classification(build)


def task_for(algorithm: Any) -> Task:
    """The task that the algorithm names where others have the small network."""
    return algorithm_task(algorithm, small_federation(), CASE.get().task or small_task())


def noisy_task() -> Classification:
    """A network that draws and that has buffers."""

    def build() -> nn.Module:
        first, last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        return nn.Sequential(first, nn.BatchNorm1d(6), nn.Dropout(0.2), last).double()

    return Classification(build)
