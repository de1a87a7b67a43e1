"""Seconds per round against the plain loop: IFCA, and a small convolutional network.

The two take turns in one process on the same data; weights are compared and steps counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import plain_loop
import torch
from torch import nn

from coterie import IFCA, Classification
from coterie.algorithms.ifca import State
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from coterie.experiment.compare import markdown
from coterie.models import mlp

LR, STEPS, CLASSES = 0.1, 10, 10


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


def measured(
    name: str, build: Callable[[], nn.Module], clients: int, samples: int, k: int, repeats: int
) -> list[str]:
    """One line of the table; k = 1 is FedAvg."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, 28, 28, generator=generator)
    # Half of a client's labels are alike and one network expects them, so that no choice is a tie.
    home = torch.arange(clients).repeat_interleave(samples) % k
    y = torch.randint(CLASSES, (clients * samples,), generator=generator)
    y = torch.where(torch.rand(len(y), generator=generator) < 0.5, home, y)
    data = Samples(x, y, torch.arange(clients + 1) * samples)
    networks = [build() for _ in range(k)]
    for j, network in enumerate(networks):
        list(network.parameters())[-1].data[j] += 3
    task = Classification(build())
    models = torch.stack([task.layout.flatten(network) for network in networks])
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
    ends = {}
    for turn in range(repeats + 1):
        for contender, spent in seconds.items():
            began = time.perf_counter()
            ends[contender] = contender()
            if turn:  # the first turn of each is not counted
                spent.append(time.perf_counter() - began)
    assert counter.steps == (repeats + 1) * clients * STEPS, "the loop left out gradient steps"
    apart = float((ends[ours] - ends[theirs]).abs().max() / ends[theirs].abs().max())
    assert apart < 1e-3, f"the weights differ by {apart:.2g}"
    mine, plain = (statistics.median(spent) for spent in seconds.values())
    numbers = [f"{plain:.2f}", f"{mine:.2f}", f"{plain / mine:.1f}", f"{apart:.0e}"]
    return [name, f"{clients} x {samples}", *numbers]


def table(options: argparse.Namespace) -> str:
    """The table of ratios to the plain loop."""
    torch.set_num_threads(options.threads)
    small = 10 if options.quick else 1
    work = [
        ("IFCA, k = 4, MLP 784-200-10", perceptron, 400 // small, 50, 4),
        ("IFCA, k = 4, MLP 784-200-10", perceptron, 200 // small, 100, 4),
        ("IFCA, k = 4, MLP 784-200-10", perceptron, 100 // small, 200, 4),
        ("FedAvg, CNN of two convolutions", small_cnn, 20 // small, 50, 1),
    ]
    repeats = 1 if options.quick else options.repeats
    rows = [measured(*one, repeats) for one in work]
    head = ["method", "clients x samples", "plain loop, s", "coterie, s", "ratio", "difference"]
    title = f"Against the plain loop, in one process, {STEPS} full-batch steps, medians"
    return f"{title}:\n\n{markdown(head, rows)}"
