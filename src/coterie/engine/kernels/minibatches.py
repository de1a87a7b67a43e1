"""Mini-batches of many clients side by side."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.cohort import Descent


class Batches(NamedTuple):
    """The samples of every step, clients that have done theirs having none."""

    place: Tensor  # [m, steps, b] their rows, any for a sample that is not there
    weight: Tensor  # [m, steps, b] what each counts in its client's mean

    @classmethod
    def of(cls, descent: Descent, dtype: torch.dtype, device: torch.device) -> Batches | None:
        """Those of a descent; None if every step takes all samples."""
        if descent.batches is None:
            return None
        rows = nn.utils.rnn.pad_sequence(descent.batches, batch_first=True, padding_value=-1)
        rows = rows.to(device)
        there = rows >= 0
        count = there.sum(2, keepdim=True).clamp_min(1)
        return cls(rows.clamp_min(0), there.to(dtype) / count)


def standing(gradient: Tensor, steps: list[int], step: int) -> Tensor:
    """Gradients [m, ...] that are zero for clients which have done their steps [m] and stand."""
    moves = torch.tensor([step < count for count in steps], device=gradient.device)
    return gradient * moves.view(-1, *(1 for _ in gradient.shape[1:]))
