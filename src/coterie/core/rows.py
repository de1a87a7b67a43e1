"""The samples of a cohort side by side, padded to the longest client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Samples of a cohort, padded to the longest client; padding never changes a result."""

    x: Any  # [m, n, ...]; `Indexed` (core/samples.py) where a sample is more than one tensor
    y: Any  # [m, n], with further axes where a target has some; `Indexed` for sequences of targets
    size: Tensor  # [m] rows that count; those behind them are padding

    @property
    def mask(self) -> Tensor:
        """Which rows count, [m, n]."""
        return torch.arange(self.y.shape[1], device=self.size.device) < self.size[:, None]

    def weights(self, dtype: torch.dtype, count: Tensor | None = None) -> Tensor:
        """What each row counts in its client's mean, [m, n].

        The mean is over `count` [m] rows if these are only some of them.
        """
        return self.mask.to(dtype) / (self.size if count is None else count)[:, None]

    def take(self, rows: Tensor) -> Rows:
        """The rows numbered `rows` [m, b] of each client; all of them count."""
        size = torch.full_like(self.size, rows.shape[1])
        return Rows(take_rows(self.x, rows), take_rows(self.y, rows), size)

    def row_range(self, begin: int, end: int) -> Rows:
        """The rows from `begin` up to `end` of each client, without a copy."""
        rows = slice(begin, end)
        return Rows(self.x[:, rows], self.y[:, rows], self.size.clamp(begin, end) - begin)

    def client_blocks(self, size: int) -> Iterator[tuple[slice, Rows]]:
        """Blocks of `size` clients: which clients they are, and their rows."""
        for begin in range(0, len(self.y), size):
            clients = slice(begin, begin + size)
            yield clients, Rows(*(part[clients] for part in self))


def take_rows(values: Any, rows: Tensor) -> Any:
    """The rows [m, b] of each client's values [m, n, ...]."""
    client = torch.arange(len(rows), device=rows.device)[:, None]
    if not isinstance(values, Tensor) or not values.is_contiguous():
        return values[client, rows]
    # Much faster than the same by two indices.
    place = (client * values.shape[1] + rows).flatten()
    return values.flatten(0, 1).index_select(0, place).view(*rows.shape, *values.shape[2:])


def nan_to_inf(losses: Tensor) -> Tensor:
    """Losses with infinity for those that are not a number."""
    return losses.nan_to_num(nan=torch.inf, posinf=torch.inf)
