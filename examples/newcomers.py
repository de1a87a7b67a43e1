"""Clients that join after the training: who is served well by the models that are there?

80 clients of rotated digits train four models with IFCA. Then 20 others come with images of their
own: 10 like the 80, and 10 who name digit y 9 - y. With `finetune_for=outliers` they
fine-tune the best model, and use what becomes of it if that moved far (docs/personal.md).

    python examples/newcomers.py --epochs 50 --seeds 3
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

import coterie
from coterie.core.task import Task
from coterie.data.federation import Federation, Samples

SWAPPED = torch.arange(20) % 2 == 1  # of the newcomers, those who name digit y 9 - y


def some_clients(samples: Samples, ids: Tensor) -> Samples:
    """The samples of clients `ids`, in this order."""
    rows = torch.cat([torch.arange(*samples.offsets[i : i + 2].tolist()) for i in ids.tolist()])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), samples.sizes[ids].cumsum(0)])
    return Samples(samples.x[rows], samples.y[rows], offsets)


def swap_labels(samples: Samples, swapped: Tensor) -> Samples:
    """The same samples, where the clients of a mask [m] name digit y 9 - y."""
    stranger = swapped.repeat_interleave(samples.sizes)
    return replace(samples, y=torch.where(stranger, 9 - samples.y, samples.y))


def members_and_newcomers(seed: int) -> tuple[Federation, Federation, Task]:
    """80 clients that train and 20 others; the last 5 of the 25 of each rotation are newcomers."""
    whole, task = coterie.load("rotated-digits", clients=100, seed=seed)
    assert whole.test is not None
    assert whole.cluster is not None
    late = torch.arange(100) % 25 >= 20
    parts = []
    for ids in (torch.nonzero(~late).flatten(), torch.nonzero(late).flatten()):
        train, test = (some_clients(part, ids) for part in (whole.train, whole.test))
        parts.append(replace(whole, train=train, test=test, cluster=whole.cluster[ids]))
    members, newcomers = parts
    train, test = (swap_labels(p, SWAPPED) for p in (newcomers.train, newcomers.test) if p)
    return members, replace(newcomers, train=train, test=test), task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--finetune-lr", type=float, default=0.0, help="0: that of the training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--finetune-for", default="outliers", choices=["all", "outliers"])
    given = parser.parse_args()
    print("seed  members  alike         swapped       use their own")
    for seed in range(given.seeds):
        members, newcomers, task = members_and_newcomers(seed)
        run = coterie.simulate(
            coterie.IFCA(k=4),
            members,
            task,
            rounds=60,
            evaluate=60,
            seed=seed,
            finetune=given.epochs,
            finetune_lr=given.finetune_lr,
            finetune_for=given.finetune_for,
        )
        found = run.personalise(newcomers)
        assert found.before is not None
        assert found.uses_own is not None
        before, after = found.before.clients["accuracy"], found.summary.clients["accuracy"]
        columns = [
            f"{100 * before[who].mean():5.1f} > {100 * after[who].mean():4.1f}"
            for who in (~SWAPPED, SWAPPED)
        ]
        keep = [int(found.uses_own[who].sum()) for who in (~SWAPPED, SWAPPED)]
        print(
            f"{seed:4}  {100 * run.metrics['accuracy']:7.1f}  {columns[0]}  {columns[1]}  "
            f"{keep[0]} of 10 alike, {keep[1]} of 10 swapped"
        )


if __name__ == "__main__":
    main()
