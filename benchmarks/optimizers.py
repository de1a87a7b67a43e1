"""How long a round takes with each optimiser of local training.

    python benchmarks/optimizers.py [--turns N]

FedAvg with 100 clients, 50 samples of 784 features each, an MLP with 200 hidden units and ten
full-batch steps, on one thread. Seconds are those of the processor, so that others on the machine
count little; optimisers take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import coterie
from coterie.networks import mlp
from coterie.report.text_tables import markdown_table
from coterie.tensors.optimizers import OPTIMIZERS

CLIENTS, SAMPLES, FEATURES, HIDDEN, CLASSES = 100, 50, 784, 200, 10
WARM, ROUNDS = 2, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3, help="runs of each optimiser")
    turns = parser.parse_args().turns
    found: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for _ in range(turns):
        for name, times in found.items():
            times.append(seconds_of_round(name))
    seconds = {name: statistics.median(times) for name, times in found.items()}
    rows = [[name, f"{t:.3f}", f"{t / seconds['sgd']:.1f}"] for name, t in seconds.items()]
    print(markdown_table(["optimizer", "seconds of a round", "times sgd"], rows))


def seconds_of_round(optimizer: str) -> float:
    """The mean of a few rounds, after those that warm up and before the one that is evaluated."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(CLIENTS, SAMPLES, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (CLIENTS, SAMPLES), generator=generator)
    federation = coterie.Federation.from_clients(list(zip(x, y, strict=True)))
    task = coterie.Classification(lambda: mlp(FEATURES, HIDDEN, CLASSES))
    rounds, times = WARM + ROUNDS + 1, []
    coterie.simulate(
        coterie.FedAvg(steps=10, lr=0.001, optimizer=optimizer),
        federation,
        task,
        rounds=rounds,
        evaluate=rounds,
        threads=1,
        on_round=lambda *_: times.append(time.process_time()),
    )
    return (times[-2] - times[WARM - 1]) / ROUNDS


if __name__ == "__main__":
    main()
