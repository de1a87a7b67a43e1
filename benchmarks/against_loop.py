"""Seconds per round against the plain loop: IFCA, mini-batches, a small convolutional network.

The two take turns in one process on the same data; steps are counted and weights compared, with
each other and with the loop in double precision. The process is started several times, for the
loop is up to a third faster in one than in another. How long a choice takes depends on how
different the k models are, so IFCA is measured on rotated MNIST: along its first rounds, again and
again before the first, and again and again after some.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import alone
import plain_loop
import torch
from torch import Tensor, nn

import coterie
from coterie import IFCA, Classification
from coterie.algorithms.ifca import State
from coterie.core.kernel import Descent, Kernel
from coterie.core.rows import Rows
from coterie.data.federation import Federation, Samples
from coterie.engine.kernels.large_products import tune_products
from coterie.engine.malloc import tune_malloc
from coterie.engine.simulator import Simulator
from coterie.networks import mlp
from coterie.report.text_tables import markdown_table

tune_malloc()  # as the command line does
tune_products()


LR, STEPS, CLASSES, BATCH = 0.1, 10, 10, 10
KINDS = torch.float32, torch.float64
EVERY, LAST = 4, 40  # along a run: both take a turn in every 4th round of 40
SIZES = (400, 50), (200, 100), (100, 200)
IMAGES = 20, 50  # clients of the convolutional network, and their samples


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
    task, ifca = Classification(perceptron), IFCA(k=4, lr=LR, steps=STEPS, start="random")
    models = torch.stack([task.draw(torch.Generator().manual_seed(j)) for j in range(4)])
    if rounds:
        models = coterie.simulate(
            replace(ifca, start="farthest"), federation, task, rounds=rounds
        ).models
    return Setting(perceptron, data, models)


def along_a_run(clients: int, samples: int) -> Setting:
    """IFCA on rotated MNIST, k = 4, from random models on."""
    return in_a_run(clients, samples, 0)._replace(along=True)


def in_mini_batches(clients: int, samples: int) -> Setting:
    """FedAvg on the same data."""
    start = in_a_run(clients, samples, 0)
    return start._replace(models=start.models[:1], batch=BATCH)


def of_images(clients: int, samples: int) -> Setting:
    """FedAvg with a convolutional network."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, 28, 28, generator=generator)
    y = torch.randint(CLASSES, (clients * samples,), generator=generator)
    data = Samples(x, y, torch.arange(clients + 1) * samples)
    models = Classification(small_cnn).draw(generator)[None]
    return Setting(small_cnn, data, models)


SETTINGS: dict[str, Callable[[int, int], Setting]] = {
    f"IFCA, k = 4, along its first {LAST} rounds": along_a_run,
    "IFCA, k = 4, before its first round": lambda m, n: in_a_run(m, n, 0),
    "IFCA, k = 4, after 20 rounds": lambda m, n: in_a_run(m, n, 20),
    f"FedAvg, {STEPS} mini-batches of {BATCH}": in_mini_batches,
    "FedAvg, CNN of two convolutions": of_images,
}


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


class Start(NamedTuple):
    """What one process found: the seconds of both in every turn, and how far they are off."""

    ours: list[float]
    loop: list[float]
    ours_off: float  # from double precision
    loop_off: float

    @property
    def ratio(self) -> float:
        """Turn by turn, for the machine may be slower in one than in another."""
        return statistics.median(b / a for a, b in zip(self.ours, self.loop, strict=True))


def measured(setting: Setting, repeats: int) -> Start:
    """Both in turns; k = 1 is FedAvg."""
    build, data, models, along, batch = setting
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
    ends, off = {}, []  # how far off they are at the end of the first turn
    for turn in range(repeats + 1):
        loaded(single)
        for contender, spent in seconds.items():
            began = time.perf_counter()
            ends[contender] = contender()
            if turn:  # the first turn of each is not counted
                spent.append(time.perf_counter() - began)
        off = off or [apart(ends[contender], exact) for contender in (ours, theirs)]
        difference = apart(ends[ours], ends[theirs])
        assert difference < 1e-3, f"the weights differ by {difference:.2g}"
        for number in range(EVERY if along and turn else 0):
            state, _ = ifca.round(state, simulator.at("round", number))
    assert counter.steps == (repeats + 2) * clients * STEPS, "the loop left out gradient steps"
    return Start(*seconds.values(), *off)


def table(options: argparse.Namespace) -> str:
    """The table of ratios to the plain loop."""
    small, starts = (10, 1) if options.quick else (1, options.turns)
    work = [
        (name, m // small, n)
        for name, build in SETTINGS.items()
        for m, n in ([IMAGES] if build is of_images else SIZES)
    ]
    found: dict[tuple[str, int, int], list[Start]] = {line: [] for line in work}
    before: dict[tuple[str, int, int], list[Start]] = {line: [] for line in work}
    for start in range(starts):  # in turns, as the peers
        for name, m, n in work:
            print(f"{name}, {m} x {n}, start {start + 1} ...", file=sys.stderr, flush=True)
            turns = LAST // EVERY if SETTINGS[name] is along_a_run else options.repeats
            turns = 1 if options.quick else turns
            words = [name, m, n, turns, options.threads]
            found[name, m, n].append(Start(*alone.answer(__file__, words, options)))
            if options.against:
                script = str(options.against / "benchmarks" / Path(__file__).name)
                python = alone.other_python(options.against)
                before[name, m, n].append(Start(*alone.answer(script, words, options, python)))
    rows = [
        [
            name,
            f"{m} x {n}",
            f"{statistics.median(t for one in every for t in one.loop):.2f}",
            f"{statistics.median(t for one in every for t in one.ours):.2f}",
            f"{statistics.median(one.ratio for one in every):.1f}",
            ", ".join(f"{one.ratio:.1f}" for one in every),
            f"{max(one.loop_off for one in every):.0e}",
            f"{max(one.ours_off for one in every):.0e}",
            *([against_before(every, before[name, m, n])] if options.against else []),
        ]
        for (name, m, n), every in found.items()
    ]
    head = ["method", "clients x samples", "plain loop, s", "coterie, s", "ratio", "of each start"]
    head += ["the loop is off by", "coterie is off by"]
    head += ["the other checkout, s (coterie's, times that)"] if options.against else []
    title = (
        f"Against the plain loop, in one process that is started {starts} times, {STEPS} steps on "
        "all samples unless it says otherwise, medians; off from double precision"
    )
    return f"{title}:\n\n{markdown_table(head, rows)}"


def against_before(every: list[Start], before: list[Start]) -> str:
    """The seconds of another checkout, and how many times those are coterie's: start by start."""
    ratios = [
        statistics.median(a.ours) / statistics.median(b.ours)
        for a, b in zip(every, before, strict=True)
    ]
    seconds = statistics.median(t for one in before for t in one.ours)
    return f"{seconds:.2f} ({statistics.median(ratios):.2f})"


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    m, n, turns, threads = map(int, numbers)
    torch.set_num_threads(threads)
    print(json.dumps(measured(SETTINGS[name](m, n), turns)))
