"""Sampling: how the clients that take part in a round are drawn.

It is an object of the run, so that it is declared (what noise hides of a client depends on it) and
so that one of a user's own can take its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.core.errors import CoterieError


class Sampling(Protocol):
    """Draws participants."""

    def draw(
        self, round: int, population: int, generator: torch.Generator, at_least: int = 0
    ) -> Tensor:
        """The clients [a] of 0 to `population` - 1 that take part in a round, increasing.

        All that is drawn comes from the generator, which is another one in every round. The start
        of an algorithm may need `at_least` so many.
        """


@dataclass(frozen=True)
class FixedSize:
    """The same number of clients in every round, all equally likely.

    >>> FixedSize(2).draw(0, 5, torch.Generator().manual_seed(0)).tolist()
    [0, 4]
    """

    count: int

    def draw(
        self, round: int, population: int, generator: torch.Generator, at_least: int = 0
    ) -> Tensor:
        count = max(self.count, at_least)
        if count >= population:
            return torch.arange(population)
        return torch.randperm(population, generator=generator)[:count].sort().values


@dataclass(frozen=True)
class Poisson:
    """Each client takes part with probability `rate`, whoever else does; it may be that none does.

    >>> Poisson(0.5).draw(0, 5, torch.Generator().manual_seed(0)).tolist()
    [0, 2, 3, 4]
    """

    rate: float

    def draw(
        self, round: int, population: int, generator: torch.Generator, at_least: int = 0
    ) -> Tensor:
        draws = torch.rand(population, generator=generator)
        taken = draws < self.rate
        taken[draws.argsort()[:at_least]] = True  # where there are fewer, the next ones
        return torch.nonzero(taken).flatten()


def draw_participants(
    sampling: Sampling, round: int, population: int, generator: torch.Generator, at_least: int = 0
) -> Tensor:
    """What a sampling draws, if it can be true."""
    ids = sampling.draw(round, population, generator, at_least)
    inside = not ids.is_floating_point() and bool(((ids >= 0) & (ids < population)).all())
    if ids.dim() != 1 or not inside or bool((ids.diff() <= 0).any()):
        raise CoterieError(
            f"{type(sampling).__name__} must draw clients by increasing numbers from 0 to "
            f"{population - 1}, each at most once, got {ids.tolist()}"
        )
    return ids.long()
