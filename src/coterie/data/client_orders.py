"""Chance for every client by itself: an order of its samples, and a place to begin at.

What a client draws goes by its name or number alone. The draws of a million clients are made one
after another; all that is done with them is done for all clients together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core import seeds


class ClientDraws:
    """The draws of clients of some sizes, whose samples lie one client after another.

    sizes  [m] samples of each client
    names  [m] of the clients, or their numbers
    """

    def __init__(self, sizes: NDArray[np.int64], names: Iterable[str | int], seed: int) -> None:
        self.sizes, self.names, self.seed = sizes, names, seed
        self.begin = np.cumsum(sizes) - sizes  # [m] where the samples of each begin
        self._generator = torch.Generator()  # the same one, seeded anew for every draw

    def orders(self, purpose: str, starts: bool = False) -> tuple[Tensor, Tensor]:
        """A random order of every client's samples [n], and with `starts` numbers [m] in [0, 1).

        The order counts from 0 in each client. A number is drawn after the order of its client.
        """
        order, start = torch.empty(int(self.sizes.sum()), dtype=torch.long), []
        for name, size, begin in zip(
            self.names, self.sizes.tolist(), self.begin.tolist(), strict=True
        ):
            generator = self._for(purpose, name)
            torch.randperm(size, generator=generator, out=order[begin : begin + size])
            if starts:
                start.append(self._number(generator))
        return order, torch.tensor(start, dtype=torch.float64)

    def starts(self, purpose: str) -> Tensor:
        """A number in [0, 1) for each client, [m]."""
        drawn = [self._number(self._for(purpose, name)) for name in self.names]
        return torch.tensor(drawn, dtype=torch.float64)

    def sorted(self, order: Tensor, key: NDArray[Any] | Tensor | None) -> NDArray[np.int64]:
        """Where the samples [n] are if each client's are in an order, and by their keys [n] first.

        Of samples with the same key those come first that the order has first.
        """
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        placed: NDArray[np.int64] = order.numpy() + self.begin[owner]
        if key is None:
            return placed
        values = np.asarray(key)[placed]
        return placed[np.lexsort((values, owner))]

    def _for(self, purpose: str, name: str | int) -> torch.Generator:
        return self._generator.manual_seed(seeds.derive(self.seed, purpose, name))

    @staticmethod
    def _number(generator: torch.Generator) -> float:
        return torch.rand((), generator=generator, dtype=torch.float64).item()
