"""Seconds per round against the plain loop: IFCA, and a small convolutional network.

The two take turns in one process on the same data; weights are compared and steps counted. How long
a choice takes depends on how different the k models are, so IFCA is measured on rotated MNIST:
along its first rounds, again and again before the first, and again and again after some.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import plain_loop
import torch
from torch import nn

import coterie
from coterie import IFCA, Classification
from coterie.algorithms.ifca import State
from coterie.data.federation import Federation, Samples
from coterie.engine.simulator import Simulator
from coterie.experiment.compare import markdown
from coterie.models import mlp

LR, STEPS, CLASSES = 0.1, 10, 10
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
    models: torch.Tensor  # [k, d]
    along: bool = False  # whether the models go on between turns


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


def measured(setting: Setting, repeats: int) -> list[str]:
    """One line of the table; k = 1 is FedAvg."""
    name, build, data, models, along = setting
    k, clients, task = len(models), len(data), Classification(build())
    networks = [build() for _ in range(k)]
    simulator, ifca = Simulator(data, task), IFCA(k=k, lr=LR, steps=STEPS)
    state = State(models, models[0, :0], torch.full((clients,), -1), torch.tensor(0))
    pairs = [data.client(i) for i in range(clients)]
    counter, local = plain_loop.Counter(), build()

    def ours() -> torch.Tensor:
        return ifca.round(state, simulator.at("round", 0))[0].models

    def theirs() -> torch.Tensor:
        states = plain_loop.ifca_round(networks, pairs, local, lr=LR, steps=STEPS, counter=counter)
        return torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in states])

    seconds: dict[Callable[[], torch.Tensor], list[float]] = {ours: [], theirs: []}
    ends, apart = {}, 0.0
    for turn in range(repeats + 1):
        for network, model in zip(networks, state.models, strict=True):
            network.load_state_dict(task.layout.unflatten(model))
        for contender, spent in seconds.items():
            began = time.perf_counter()
            ends[contender] = contender()
            if turn:  # the first turn of each is not counted
                spent.append(time.perf_counter() - began)
        difference = (ends[ours] - ends[theirs]).abs().max() / ends[theirs].abs().max()
        apart = max(apart, float(difference))
        for number in range(EVERY if along and turn else 0):
            state, _ = ifca.round(state, simulator.at("round", number))
    assert counter.steps == (repeats + 1) * clients * STEPS, "the loop left out gradient steps"
    assert apart < 1e-3, f"the weights differ by {apart:.2g}"
    mine, plain = (statistics.median(spent) for spent in seconds.values())
    # Turn by turn, for the machine may be slower in one than in another.
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    numbers = [f"{plain:.2f}", f"{mine:.2f}", f"{ratio:.1f}", f"{apart:.0e}"]
    return [name, f"{clients} x {int(data.sizes[0])}", *numbers]


def table(options: argparse.Namespace) -> str:
    """The table of ratios to the plain loop."""
    torch.set_num_threads(options.threads)
    small = 10 if options.quick else 1
    sizes = [(400, 50), (200, 100), (100, 200)]
    work = [along_a_run(m // small, n) for m, n in sizes]
    work += [in_a_run(m // small, n, rounds) for rounds in (0, 20) for m, n in sizes]
    work.append(of_images(20 // small, 50))
    rows = []
    for setting in work:
        turns = LAST // EVERY if setting.along else options.repeats
        rows.append(measured(setting, 1 if options.quick else turns))
    head = ["method", "clients x samples", "plain loop, s", "coterie, s", "ratio", "difference"]
    title = f"Against the plain loop, in one process, {STEPS} full-batch steps, medians"
    return f"{title}:\n\n{markdown(head, rows)}"
