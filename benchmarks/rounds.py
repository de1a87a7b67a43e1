"""Seconds per round against the plain loop, in one run, and whether the weights agree.

    make bench

Every line is a ratio of medians from the same process on the same data; the contenders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import plain_loop
import torch

from coterie import IFCA, Classification
from coterie.algorithms.ifca import State
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from coterie.experiment.compare import markdown
from coterie.models import mlp

SHAPE = (784, 200, 10)
LR, STEPS = 0.1, 10


def measured(clients: int, samples: int, k: int, repeats: int) -> list[str]:
    """One line of the table: k = 1 is FedAvg, k = 4 the IFCA of rotated MNIST."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(clients * samples, SHAPE[0], generator=generator)
    # Half of a client's labels are alike and one network expects them, so that no choice is a tie.
    home = torch.arange(clients).repeat_interleave(samples) % k
    y = torch.randint(SHAPE[2], (clients * samples,), generator=generator)
    y = torch.where(torch.rand(len(y), generator=generator) < 0.5, home, y)
    data = Samples(x, y, torch.arange(clients + 1) * samples)
    task = Classification(mlp(*SHAPE))
    networks = [mlp(*SHAPE) for _ in range(k)]
    for j, network in enumerate(networks):
        list(network.parameters())[-1].data[j] += 3
    models = torch.stack([task.layout.flatten(network) for network in networks])
    simulator, ifca = Simulator(data, task), IFCA(k=k, lr=LR, steps=STEPS)
    state = State(models, models[0, :0], torch.full((clients,), -1), torch.tensor(0))
    pairs = [data.client(i) for i in range(clients)]
    counter = plain_loop.Counter()

    def ours() -> torch.Tensor:
        return ifca.round(state, simulator.at("round", 0))[0].models

    def theirs() -> torch.Tensor:
        states = plain_loop.ifca_round(
            networks, pairs, lr=LR, steps=STEPS, shape=SHAPE, counter=counter
        )
        return torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in states])

    seconds: dict[Callable[[], torch.Tensor], list[float]] = {ours: [], theirs: []}
    ends = {}
    for _ in range(repeats):
        for contender, spent in seconds.items():
            began = time.perf_counter()
            ends[contender] = contender()
            spent.append(time.perf_counter() - began)
    assert counter.steps == repeats * clients * STEPS, "the plain loop left out gradient steps"
    apart = float((ends[ours] - ends[theirs]).abs().max() / ends[theirs].abs().max())
    assert apart < 1e-4, f"the weights differ by {apart:.2g}"
    mine, plain = (statistics.median(spent) for spent in seconds.values())
    name = "FedAvg" if k == 1 else f"IFCA, k = {k}"
    return [
        name,
        f"{clients} x {samples}",
        f"{plain:.2f}",
        f"{mine:.2f}",
        f"{plain / mine:.1f}",
        f"{apart:.1g}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = ["method", "clients x samples", "plain loop, s", "coterie, s", "ratio", "difference"]
    work = [(400, 50, 4), (200, 100, 4), (100, 200, 4), (100, 200, 1)]
    rows = [measured(*one, options.repeats) for one in work]
    print(f"MLP {SHAPE}, {STEPS} full-batch steps, {options.threads} threads, medians\n")
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
