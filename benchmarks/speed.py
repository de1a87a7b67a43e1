"""How much of the machine's measured matrix-product speed a round of FedAvg reaches.

Operations are counted twice: those of the ordinary method, 4nfh + 6nhc for a step on n samples,
and those that descent in sample space needs (docs/concepts.md). A round that beats the
machine's speed by the first count does so by needing fewer operations.
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
from coterie.experiment.compare import markdown
from coterie.models import mlp

F, H, C, STEPS = 784, 200, 10, 10
SIZE = 2048  # of the matrices whose product is the yardstick


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of some calls, after one that is not counted."""
    work()
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def ordinary(n: int) -> int:
    """Operations of a client: forwards, and backwards by weights and by hidden activations."""
    return STEPS * (4 * n * F * H + 6 * n * H * C)


def in_sample_space(n: int) -> int:
    """Z = X W and the Gram matrix once, a step on Z, and the weights at the end."""
    return 4 * n * F * H + 2 * n * n * F + STEPS * (2 * n * n * H + 6 * n * H * C)


def table(options: argparse.Namespace) -> str:
    """The table of operations per second, as shares of the matrix product's."""
    torch.set_num_threads(options.threads)
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    yardstick = 2 * SIZE**3 / median_seconds(lambda: a @ b, 3 if options.quick else 7)
    rows = []
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

        seconds = median_seconds(round, options.repeats)
        needed = min(in_sample_space(n), ordinary(n))
        rows.append(
            [
                f"{clients} x {n}",
                f"{seconds:.2f}",
                f"{clients * ordinary(n) / 1e9:.0f}",
                f"{clients * ordinary(n) / seconds / yardstick:.0%}",
                f"{clients * needed / 1e9:.0f}",
                f"{clients * needed / seconds / yardstick:.0%}",
            ]
        )
    head = ["clients x samples", "s per round", "ordinary, GFLOP", "share of the speed"]
    head += ["sample space, GFLOP", "share of the speed"]
    title = (
        f"FedAvg of an MLP {F}-{H}-{C} against a product of {SIZE} x {SIZE} matrices "
        f"({yardstick / 1e9:.0f} GFLOP/s)"
    )
    return f"{title}:\n\n{markdown(head, rows)}"
