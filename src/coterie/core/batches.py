"""Mini-batches: which samples of a client each of its gradient steps takes."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core import seeds


def shuffled_batches(size: int, batch: int, steps: int, generator: torch.Generator) -> Tensor:
    """The rows of `steps` mini-batches, [steps, batch], each pass a new permutation; -1 is none.

    >>> shuffled_batches(3, 2, 4, torch.Generator().manual_seed(0)).sort().values.shape
    torch.Size([4, 2])
    """
    per_pass = -(-size // batch)
    rows = torch.full((-(-steps // per_pass), per_pass * batch), -1, device="cpu")
    for one_pass in rows:
        one_pass[:size] = torch.randperm(size, generator=generator, device="cpu")
    return rows.view(-1, batch)[:steps]


def batches_of_clients(
    sizes: list[int],
    batch: int,
    steps: list[int],
    address: tuple[int | str, ...],
    ids: Tensor,
) -> list[Tensor] | None:
    """The rows of all steps, m of [steps, batch]; None if every step takes all samples.

    A client's batches come from the address and its id, so that they are the same alone.
    """
    if not batch or all(size <= batch for size in sizes):
        return None
    return [
        shuffled_batches(size, batch, count, seeds.generator(*address, i, "batches"))
        for size, count, i in zip(sizes, steps, ids.tolist(), strict=True)
    ]
