"""Seconds per round against the plain loop: IFCA, mini-batches, a small convolutional network.

The two take turns in one process on the same data; steps are counted and weights compared, with
each other and with the loop in double precision. How long a choice takes depends on how different
the k models are, so IFCA is measured on rotated MNIST: along its first rounds, again and again
before the first, and again and again after some.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import plain_loop
import torch
from torch import Tensor, nn

import coterie
from coterie import IFCA, Classification
from coterie.algorithms.ifca import State
from coterie.core.cohort import Descent, Kernel, Rows
from coterie.data.federation import Federation, Samples
from coterie.engine.simulator import Simulator
from coterie.experiment.compare import markdown
from coterie.models import mlp

LR, STEPS, CLASSES, BATCH = 0.1, 10, 10, 10
KINDS = torch.float32, torch.float64
EVERY, LAST = 4, 40  # along a run: both take a turn in every 4th round of 40


def small_cnn() -> nn.Module:
    """Two convolutions with pooling and one layer, on images [n, 28, 28]."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, CLASSES),
    )


def perceptron() -> nn.Module:
    return mlp(784, 200, CLASSES)


class Setting(NamedTuple):
    """What both contenders are given."""

    name: str
    build: Callable[[], nn.Module]
    data: Samples
    models: Tensor  # [k, d]
    along: bool = False  # whether the models go on between turns
    batch: int = 0  # samples of a step; 0: all


def in_a_run(clients: int, samples: int, rounds: int) -> Setting:
    """IFCA on rotated MNIST, k = 4, as it is before its first round or after some of them."""
    federation, _ = coterie.load("rotated-mnist", clients=clients, samples=samples)
    train = federation.train
    data = Samples(train.x.float() / 255, train.y, train.offsets)
    federation = Federation(data, cluster=federation.cluster)
    task, ifca = Classification(perceptron()), IFCA(k=4, lr=LR, steps=STEPS, start="random")
    models = torch.stack([task.draw(torch.Generator().manual_seed(j)) for j in range(4)])
    if rounds:
        models = coterie.simulate(
            replace(ifca, start="farthest"), federation, task, rounds=rounds
        ).models
    return Setting(f"IFCA, k = 4, after {rounds} rounds", perceptron, data, models)


def along_a_run(clients: int, samples: int) -> Setting:
    """IFCA on rotated MNIST, k = 4, from random models on."""
    start = in_a_run(clients, samples, 0)
    return start._replace(name=f"IFCA, k = 4, along its first {LAST} rounds", along=True)


def of_images(clients: int, samples: int) -> Setting:
    """FedAvg with a convolutional network."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, 28, 28, generator=generator)
    y = torch.randint(CLASSES, (clients * samples,), generator=generator)
    data = Samples(x, y, torch.arange(clients + 1) * samples)
    models = Classification(small_cnn()).draw(generator)[None]
    return Setting("FedAvg, CNN of two convolutions", small_cnn, data, models)


class Noting:
    """A kernel that notes which rows clients took in their steps, for the loop to take them too."""

    def __init__(self, inner: Kernel) -> None:
        self.inner, self.batches = inner, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        if descent.batches is not None:
            self.batches |= dict(zip(descent.ids.tolist(), descent.batches, strict=True))
        return self.inner.descend(start, rows, descent)


def apart(found: Tensor, exact: Tensor) -> float:
    """The largest difference of weights, relative to the largest weight."""
    return float((found - exact).abs().max() / exact.abs().max())


def measured(setting: Setting, repeats: int) -> list[str]:
    """One line of the table; k = 1 is FedAvg."""
    name, build, data, models, along, batch = setting
    k, clients, task = len(models), len(data), Classification(build())
    simulator = Simulator(data, task)
    ifca = IFCA(k=k, lr=LR, steps=STEPS, batch=batch)
    state = State(models, models[0, :0], torch.full((clients,), -1), torch.tensor(0))
    counter = plain_loop.Counter()
    if batch:
        simulator.kernel = noting = Noting(simulator.kernel)
        ifca.round(state, simulator.at("round", 0))
        simulator.kernel = noting.inner
    batches = [noting.batches[i] for i in range(clients)] if batch else None

    def loaded(networks: list[nn.Module]) -> list[nn.Module]:
        for network, model in zip(networks, state.models, strict=True):
            network.load_state_dict(task.layout.unflatten(model))
        return networks

    def loop(kind: torch.dtype, networks: list[nn.Module]) -> Callable[[], Tensor]:
        local = build().to(kind)
        pairs = [(x.to(kind), y) for x, y in map(data.client, range(clients))]

        def theirs() -> Tensor:
            states = plain_loop.ifca_round(
                networks, pairs, local, lr=LR, steps=STEPS, counter=counter, batches=batches
            )
            return torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in states])

        return theirs

    def ours() -> Tensor:
        return ifca.round(state, simulator.at("round", 0))[0].models

    single, double = ([build().to(kind) for _ in range(k)] for kind in KINDS)
    theirs, exact = loop(KINDS[0], single), loop(KINDS[1], loaded(double))()
    seconds: dict[Callable[[], Tensor], list[float]] = {ours: [], theirs: []}
    ends, off = {}, []
    for turn in range(repeats + 1):
        loaded(single)
        for contender, spent in seconds.items():
            began = time.perf_counter()
            ends[contender] = contender()
            if turn:  # the first turn of each is not counted
                spent.append(time.perf_counter() - began)
        off = off or [f"{apart(ends[contender], exact):.0e}" for contender in (theirs, ours)]
        difference = apart(ends[ours], ends[theirs])
        assert difference < 1e-3, f"the weights differ by {difference:.2g}"
        for number in range(EVERY if along and turn else 0):
            state, _ = ifca.round(state, simulator.at("round", number))
    assert counter.steps == (repeats + 2) * clients * STEPS, "the loop left out gradient steps"
    mine, plain = (statistics.median(spent) for spent in seconds.values())
    # Turn by turn, for the machine may be slower in one than in another.
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    return [
        name,
        f"{clients} x {int(data.sizes[0])}",
        f"{plain:.2f}",
        f"{mine:.2f}",
        f"{ratio:.1f}",
        *off,
    ]


def table(options: argparse.Namespace) -> str:
    """The table of ratios to the plain loop."""
    torch.set_num_threads(options.threads)
    small = 10 if options.quick else 1
    sizes = [(400, 50), (200, 100), (100, 200)]
    work = [along_a_run(m // small, n) for m, n in sizes]
    work += [in_a_run(m // small, n, rounds) for rounds in (0, 20) for m, n in sizes]
    for m, n in sizes:
        start = in_a_run(m // small, n, 0)
        name = f"FedAvg, {STEPS} mini-batches of {BATCH}"
        work.append(start._replace(name=name, models=start.models[:1], batch=BATCH))
    work.append(of_images(20 // small, 50))
    rows = []
    for setting in work:
        turns = LAST // EVERY if setting.along else options.repeats
        rows.append(measured(setting, 1 if options.quick else turns))
    head = ["method", "clients x samples", "plain loop, s", "coterie, s", "ratio"]
    head += ["the loop is off by", "coterie is off by"]
    title = (
        f"Against the plain loop, in one process, {STEPS} steps on all samples unless it says "
        "otherwise, medians; off from double precision"
    )
    return f"{title}:\n\n{markdown(head, rows)}"
