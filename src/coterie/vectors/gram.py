"""Inner products of a few long rows."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 4096  # coordinates that are taken to double precision at a time


def gram(rows: Tensor, origin: Tensor | None = None) -> Tensor:
    """The inner products [a, a] of rows [a, d], seen from an origin [d], in double precision.

    They are added up over blocks of coordinates, so that no copy of the rows is made.

    >>> gram(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), origin=torch.tensor([1.0, 0.0])).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    products = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for begin in range(0, rows.shape[1], COLUMNS):
        columns = slice(begin, begin + COLUMNS)
        block = rows[:, columns].double()
        if origin is not None:
            block = block - origin[columns]
        products += block @ block.T
    return products
