"""What stored samples are like: shapes and types of their inputs, and which of them are extreme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.samples import Inputs, Ragged, Stored


class PartKind(NamedTuple):
    """What the tensors of one input, or of the targets, are like."""

    name: str  # of the input; empty where there is only one
    shape: tuple[int, ...]  # of one sample, or of one token
    dtype: torch.dtype
    ragged: bool  # whether they are sequences of their own lengths

    def __str__(self) -> str:
        """As in `text: sequences of int64`."""
        kind = str(self.dtype).removeprefix("torch.")
        each = " x ".join(map(str, self.shape))
        text = " ".join(filter(None, ["sequences of" if self.ragged else "", each, kind]))
        return f"{self.name}: {text}" if self.name else text


def sample_kinds(stored: Stored) -> tuple[PartKind, ...]:
    """What each input of stored samples is like, in order."""
    parts: Mapping[str, Any] = stored.parts if isinstance(stored, Inputs) else {"": stored}
    found = []
    for name, part in parts.items():
        ragged = isinstance(part, Ragged)
        values = part.values if ragged else part
        found.append(PartKind(name, tuple(values.shape[1:]), values.dtype, ragged))
    return tuple(found)


def sample_shape(stored: Stored) -> Any:
    """The shape of a sample; of sequences that of a token behind a -1, of inputs one by name.

    >>> sample_shape(Inputs({"image": torch.zeros(5, 8, 8), "text": Ragged.of([[1, 2], [3]])}))
    {'image': torch.Size([8, 8]), 'text': torch.Size([-1])}
    """
    if isinstance(stored, Inputs):
        return {name: sample_shape(part) for name, part in stored.parts.items()}
    if isinstance(stored, Ragged):
        return torch.Size([-1, *stored.values.shape[1:]])
    return stored.shape[1:]


def rows_of_extremes(stored: Stored) -> Tensor:
    """The samples that hold the smallest and the largest whole number of each input; maybe none.

    >>> rows_of_extremes(Ragged.of([[5, 2], [9], [3, 0, 1]])).tolist()
    [1, 2]
    """
    rows: Tensor = torch.cat([extreme_rows(part) for part in stored_parts(stored)]).unique()
    return rows


def extreme_rows(part: Tensor | Ragged) -> Tensor:
    """The samples with the smallest and the largest whole number of one input, [2] or none."""
    values = part.values if isinstance(part, Ragged) else part
    if values.is_floating_point():
        return torch.arange(0)
    places = torch.stack([values.argmin(), values.argmax()]) // values.shape[1:].numel()
    if not isinstance(part, Ragged):
        return places
    return torch.searchsorted(part.offsets, places, right=True) - 1


def stored_parts(stored: Stored) -> list[Any]:
    """The inputs that stored samples are made of."""
    return list(stored.parts.values()) if isinstance(stored, Inputs) else [stored]


def stored_tensors(stored: Stored) -> list[Tensor]:
    """All tensors that stored samples are made of."""
    if isinstance(stored, Inputs):
        return [tensor for part in stored.parts.values() for tensor in stored_tensors(part)]
    return [stored.values, stored.offsets] if isinstance(stored, Ragged) else [stored]


def numbers_per_sample(stored: Stored) -> int:
    """How many numbers a sample has; of sequences, on average."""
    if isinstance(stored, Inputs):
        return sum(numbers_per_sample(part) for part in stored.parts.values())
    if isinstance(stored, Ragged):
        return -(-stored.values.numel() // max(1, len(stored)))
    return stored.shape[1:].numel()
