"""A race: which of k shared models has the lowest loss, without finishing the losers.

Losses of samples are never negative, so a model whose loss on some of a client's samples already
exceeds another's loss on all of them cannot be the best. All models see the first samples; the one
that is ahead goes on to the end; of the others only those go on that may still win. Where clusters
differ, as they do after a few rounds, most never do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.rows import Rows, nan_to_inf
from coterie.engine.kernels.linear_layers import LinearLayers
from coterie.engine.kernels.shared_models import (
    compare_models,
    outputs_of_chosen,
    selected_losses,
    shared_losses,
)

FIRST_SHARE = 0.2  # the share of samples on which all models run
SAMPLED_CLIENTS = 8  # clients at most by whom a race is judged to be close

# (clients [c], models [c], out [c, h, r]) -> what the remaining samples of each client add to its
# mean loss under that model [c]; what the model's first layer makes of them is put into `out`
RemainingLosses = Callable[[Tensor, Tensor, Tensor], Tensor]


def choose_best(network: LinearLayers, models: Tensor, rows: Rows, out: Tensor) -> Tensor:
    """The best model [m] of each client, by a race if it is worth one.

    What its first layer makes of the samples is put into `out` [m, h, n].
    """
    first = first_samples(rows.y.shape[1]) if network.task.losses_at_least_zero else 0
    if first and not few_would_drop_out(network, models, rows, first):
        return race(network, models, rows, first, out)
    return compare_models(network, models, rows, out)


def first_samples(samples: int) -> int:
    """How many of so many samples all models see first; 0 if there are too few for a race."""
    return int(FIRST_SHARE * samples)


def few_would_drop_out(network: LinearLayers, models: Tensor, rows: Rows, first: int) -> bool:
    """Whether the race would be close after `first` samples, by some of the clients."""
    every = -(-len(rows.y) // SAMPLED_CLIENTS)
    some = Rows(*(part[::every] for part in rows))
    blocks = shared_losses(network, models, some.row_range(0, first), some.size)
    losses = torch.cat([losses for _, _, losses in blocks])
    return is_close(losses, first / rows.y.shape[1])


def is_close(losses: Tensor, share: float) -> bool:
    """Whether most models would have to go on to the end, by their losses on a share of samples."""
    m, k = losses.shape
    return int((losses <= losses.amin(1, keepdim=True) / share).sum()) > m * (1 + k) / 2


def race(network: LinearLayers, models: Tensor, rows: Rows, first: int, out: Tensor) -> Tensor:
    """The best model [m] of each client by a race, all models seeing the `first` samples."""
    rest = rows.row_range(first, rows.y.shape[1])
    blocks = list(shared_losses(network, models, rows.row_range(0, first), rows.size))
    index = find_winners(
        nan_to_inf(torch.cat([losses for _, _, losses in blocks])),
        out[:, :, first:],
        lambda clients, j, last: selected_losses(
            network, models, j, rest, clients, rows.size, last
        ),
    )
    for here, z, _ in blocks:
        out[here, :, :first] = outputs_of_chosen(z, index[here])
    return index


def find_winners(losses: Tensor, last: Tensor, remaining: RemainingLosses) -> Tensor:
    """The winner [m] for each client; of equal models it is the first.

    `losses` [m, k] are those of the first samples. What the winners' first layers make of the last
    ones is put into `last` [m, h, r].
    """
    everyone, leader = torch.arange(len(losses), device=losses.device), losses.argmin(1)
    total = torch.full_like(losses, torch.inf)
    added = nan_to_inf(remaining(everyone, leader, last))
    total[everyone, leader] = losses[everyone, leader] + added
    may_win = losses <= total[everyone, leader][:, None]
    may_win[everyone, leader] = False
    clients, models = torch.nonzero(may_win).unbind(1)
    if len(clients) == 0:
        return leader
    outputs = last.new_empty(len(clients), *last.shape[1:])
    added = nan_to_inf(remaining(clients, models, outputs))
    total[clients, models] = losses[clients, models] + added
    winner = total.argmin(1)
    won = winner[clients] == models
    last[clients[won]] = outputs[won]
    return winner
