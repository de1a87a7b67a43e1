"""IFCA and FedAvg as the papers' authors write them: client by client, with torch.optim.

This is the contender that every other number is a ratio to, and the reference that weights are
checked against. It is written to be fair: data in memory, no copies that are not needed, losses
without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.models import mlp


class Counter:
    """Gradient steps that were made."""

    steps = 0


def ifca_round(
    networks: Sequence[nn.Module],
    clients: Sequence[tuple[Tensor, Tensor]],
    *,
    lr: float,
    steps: int,
    shape: tuple[int, int, int],
    counter: Counter,
) -> list[dict[str, Tensor]]:
    """One round of IFCA with model averaging; the new state of every network."""
    k = len(networks)
    sums: list[dict[str, Tensor] | None] = [None] * k
    counts = [0] * k
    for x, y in clients:
        with torch.no_grad():
            losses = [float(cross_entropy(network(x), y)) for network in networks]
        j = min(range(k), key=losses.__getitem__)
        local = mlp(*shape)
        local.load_state_dict(networks[j].state_dict())
        optimiser = torch.optim.SGD(local.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            cross_entropy(local(x), y).backward()
            optimiser.step()
            counter.steps += 1
        counts[j] += 1
        state = {name: value.detach() for name, value in local.state_dict().items()}
        total = sums[j]
        sums[j] = state if total is None else {n: total[n] + value for n, value in state.items()}
    return [
        networks[j].state_dict() if total is None else {n: v / counts[j] for n, v in total.items()}
        for j, total in enumerate(sums)
    ]
