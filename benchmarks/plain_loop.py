"""IFCA and FedAvg as the papers' authors write them: client by client, with torch.optim.

It is written to be fair: data in memory, no copies that are not needed, losses without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Counter:
    """Gradient steps that were made."""

    steps = 0


def ifca_round(
    networks: Sequence[nn.Module],
    clients: Sequence[tuple[Tensor, Tensor]],
    local: nn.Module,
    *,
    lr: float,
    steps: int,
    counter: Counter,
    batches: Sequence[Tensor] | None = None,
) -> list[dict[str, Tensor]]:
    """One round of IFCA with model averaging; the new state of every network.

    With one network it is FedAvg, which has no choice to make. `local` is the network that clients
    train, one after another. `batches` are the rows of each client's steps [steps, b]; none: all
    rows in every step.
    """
    k = len(networks)
    states = [{n: value.clone() for n, value in one.state_dict().items()} for one in networks]
    sums = [{n: torch.zeros_like(value) for n, value in state.items()} for state in states]
    counts = [0] * k
    for i, (x, y) in enumerate(clients):
        j = 0
        if k > 1:
            with torch.no_grad():
                losses = [float(cross_entropy(network(x), y)) for network in networks]
            j = min(range(k), key=losses.__getitem__)
        local.load_state_dict(states[j])
        optimiser = torch.optim.SGD(local.parameters(), lr=lr)
        for step in range(steps):
            rows = slice(None) if batches is None else batches[i][step]
            optimiser.zero_grad()
            cross_entropy(local(x[rows]), y[rows]).backward()
            optimiser.step()
            counter.steps += 1
        counts[j] += 1
        for name, value in local.state_dict().items():
            sums[j][name] += value
    return [
        {name: value / counts[j] for name, value in total.items()} if counts[j] else states[j]
        for j, total in enumerate(sums)
    ]
