"""How much of the machine's measured matrix-product speed a round of FedAvg reaches.

Operations are counted twice: those of the ordinary method, 4nfh + 6nhc for a step on n samples,
and those that a warm round in sample space makes (docs/concepts.md). A round that beats the
machine's speed by the first count does so by needing fewer operations. The product that is the
yardstick is done in turns with the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from coterie import Classification, FedAvg
from coterie.algorithms.fedavg import State
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from coterie.networks import mlp
from coterie.report.text_tables import markdown_table

F, H, C, STEPS = 784, 200, 10, 10
SIZE = 2048  # of the matrices whose product is the yardstick


def seconds_of(work: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ordinary(n: int) -> int:
    """Operations of a client: forwards, and backwards by weights and by hidden activations."""
    return STEPS * (4 * n * F * H + 6 * n * H * C)


def in_sample_space(n: int) -> int:
    """Z = X W, the steps on Z but the last, and the weights at the end; X X' is there already."""
    return 4 * n * F * H + (STEPS - 1) * 2 * n * n * H + STEPS * 6 * n * H * C


def table(options: argparse.Namespace) -> str:
    """The table of operations per second, as shares of the matrix product's."""
    torch.set_num_threads(options.threads)
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    rows, speeds = [], []
    for clients, n in ((40, 50), (10, 200)) if options.quick else ((400, 50), (100, 200)):
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(clients * n, F, generator=generator)
        y = torch.randint(C, (clients * n,), generator=generator)
        task = Classification(mlp(F, H, C))
        simulator = Simulator(Samples(x, y, torch.arange(clients + 1) * n), task)
        state, fedavg = State(task.layout.flatten(mlp(F, H, C))), FedAvg(steps=STEPS)

        def round(
            fedavg: FedAvg = fedavg, state: State = state, simulator: Simulator = simulator
        ) -> object:
            return fedavg.round(state, simulator.at("round", 0))

        turns = [
            (seconds_of(lambda: a @ b), seconds_of(round)) for _ in range(options.repeats + 1)
        ][1:]  # the first is not counted
        speeds += [2 * SIZE**3 / one / 1e9 for one, _ in turns]
        # Per operation of a round: what share of the speed of the product it is.
        worth = statistics.median(one / whole for one, whole in turns) / (2 * SIZE**3)
        needed = min(in_sample_space(n), ordinary(n))
        rows.append(
            [
                f"{clients} x {n}",
                f"{statistics.median(whole for _, whole in turns):.2f}",
                f"{clients * ordinary(n) / 1e9:.0f}",
                f"{clients * ordinary(n) * worth:.0%}",
                f"{clients * needed / 1e9:.0f}",
                f"{clients * needed * worth:.0%}",
            ]
        )
    head = ["clients x samples", "s per round", "ordinary, GFLOP", "share of the speed"]
    head += ["sample space, GFLOP", "share of the speed"]
    title = (
        f"FedAvg of an MLP {F}-{H}-{C} against a product of {SIZE} x {SIZE} matrices "
        f"({statistics.median(speeds):.0f} GFLOP/s)"
    )
    return f"{title}:\n\n{markdown_table(head, rows)}"
