"""Federations small enough to work out by hand: client i has samples x = 1, y = its target.

The model is one number w with loss (w - y)^2, so a step of size 1/4 goes half the way to y.
"""

import torch
from torch import nn

from coterie import Federation, Regression
from coterie.core.algorithm import Start
from coterie.engine.simulator import Simulator


def line(targets, sizes=None):
    """One client for each target, all of whose samples are (1, target)."""
    sizes = sizes or [1] * len(targets)
    return Federation.from_clients(
        [
            (torch.ones(n, 1), torch.full((n,), float(y)))
            for y, n in zip(targets, sizes, strict=True)
        ]
    )


def simulator(targets, sizes=None, draws=None):
    """Clients on a line; starting models are taken from `draws` in turn, if given."""
    pending = iter(draws or [])
    task = Regression(
        nn.Linear(1, 1, bias=False),
        draw=(lambda generator: torch.tensor([float(next(pending))])) if draws else None,
    )
    return Simulator(line(targets, sizes).train, task)


class Everybody:
    """A population of which all take part in every round of the start."""

    def __init__(self, clients):
        self.clients = clients

    def sample(self, round, at_least):
        return self.clients.at("start", round)


def start_of(clients, truth=None):
    return Start(Everybody(clients), clients.task, clients.population, seed=0, truth=truth)
