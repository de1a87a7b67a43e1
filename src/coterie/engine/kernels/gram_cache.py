"""Inner products of clients' samples, kept from one round to the next."""

from __future__ import annotations

import torch
from torch import Tensor

# What the products X X' of clients may occupy that are kept, and how many multiplications make
# one worth keeping: a small one is sooner worked out than looked up.
GRAM_BYTES = 64 * 2**20
GRAM_WORK = 2**19


class GramCache:
    """The products X X' [n, n] of clients' samples, which are the same in every round.

    The first clients that come are kept as long as there is room, whatever their number.
    """

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}
        self.free = GRAM_BYTES

    def of(self, x: Tensor, ids: Tensor | None) -> Tensor:
        """The products [b, n, n] for samples [b, n, f], all that the clients `ids` have."""
        n, f = x.shape[1:]
        if ids is None or n * n * f < GRAM_WORK:
            return torch.bmm(x, x.mT)
        clients = ids.tolist()
        known = [gram for i in clients if (gram := self.held.get(i)) is not None and len(gram) == n]
        if len(known) == len(clients):
            return torch.stack(known)
        grams = torch.bmm(x, x.mT)
        for i, gram in zip(clients, grams, strict=True):
            if i not in self.held and gram.nbytes <= self.free:
                self.held[i] = gram.clone()
                self.free -= gram.nbytes
        return grams
