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

from coterie.core.cohort import nan_to_inf

# The share of samples on which all models run.
FIRST_LAP = 0.2

# (clients [c], models [c], room [c, h, r]) -> what the remaining samples of each client add to its
# mean loss under that model [c]; what the model's first layer makes of them is put into the room
Finish = Callable[[Tensor, Tensor, Tensor], Tensor]


def first_lap(samples: int) -> int:
    """How many of so many samples all models see first; 0 if there are too few for a race."""
    return int(FIRST_LAP * samples)


def is_close(losses: Tensor, share: float) -> bool:
    """Whether most models would have to go on to the end, by their losses on a share of samples."""
    m, k = losses.shape
    return int((losses <= losses.amin(1, keepdim=True) / share).sum()) > m * (1 + k) / 2


def finished(losses: Tensor, last: Tensor, finish: Finish) -> Tensor:
    """The winner [m] for each client; of equal models it is the first.

    `losses` [m, k] are those of the first samples. What the winners' first layers make of the last
    ones is put into `last` [m, h, r].
    """
    everyone, leader = torch.arange(len(losses), device=losses.device), losses.argmin(1)
    total = torch.full_like(losses, torch.inf)
    total[everyone, leader] = losses[everyone, leader] + nan_to_inf(finish(everyone, leader, last))
    may_win = losses <= total[everyone, leader][:, None]
    may_win[everyone, leader] = False
    clients, models = torch.nonzero(may_win).unbind(1)
    if len(clients) == 0:
        return leader
    outputs = last.new_empty(len(clients), *last.shape[1:])
    total[clients, models] = losses[clients, models] + nan_to_inf(finish(clients, models, outputs))
    winner = total.argmin(1)
    won = winner[clients] == models
    last[clients[won]] = outputs[won]
    return winner
