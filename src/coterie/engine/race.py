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

from coterie.core.cohort import finite

# The share of samples on which all models run.
FIRST_LAP = 0.2

# (model j, clients [c]) -> what j's first layer makes of their remaining samples [c, h, r], and
# what these add to their mean losses [c]
Finish = Callable[[int, Tensor], tuple[Tensor, Tensor]]


def first_lap(samples: int) -> int:
    """How many of so many samples all models see first; 0 if there are too few for a race."""
    return int(FIRST_LAP * samples)


def is_close(losses: Tensor, share: float) -> bool:
    """Whether most models would have to go on to the end, by their losses on a share of samples."""
    m, k = losses.shape
    return int((losses <= losses.amin(1, keepdim=True) / share).sum()) > m * (1 + k) / 2


def finished(losses: Tensor, finish: Finish) -> tuple[Tensor, Tensor]:
    """The winner [m] for each client, and its first layer's outputs [m, h, r] on the last samples.

    `losses` [m, k] are those of the first samples. Of equal models the first one wins.
    """
    m, k = losses.shape
    lowest = losses.new_full((m,), torch.inf)
    winner = losses.new_full((m,), k, dtype=torch.long)
    last = losses.new_empty(0)
    runs = losses == losses.amin(1, keepdim=True)
    done = torch.zeros_like(runs)
    while bool(runs.any()):
        for j in range(k):
            clients = torch.nonzero(runs[:, j]).flatten()
            if len(clients) == 0:
                continue
            outputs, rest = finish(j, clients)
            total = losses[clients, j] + finite(rest)
            before = lowest[clients]
            better = (total < before) | ((total == before) & (j < winner[clients]))
            lowest[clients] = torch.where(better, total, before)
            winner[clients] = torch.where(better, j, winner[clients])
            if not len(last):
                last = outputs.new_empty(m, *outputs.shape[1:])
            last[clients[better]] = outputs[better]
        done |= runs
        runs = (losses <= lowest[:, None]) & ~done
    return winner, last
