"""Mini-batches of many clients side by side."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.cohort import Descent


class MiniBatches(NamedTuple):
    """The samples of every step, clients that have done theirs having none."""

    place: Tensor  # [m, steps, b] their rows, any for a sample that is missing
    weight: Tensor  # [m, steps, b] what each counts in its client's mean

    @classmethod
    def of(cls, descent: Descent, dtype: torch.dtype, device: torch.device) -> MiniBatches | None:
        """Those of a descent; None if every step takes all samples."""
        if descent.batches is None:
            return None
        rows = nn.utils.rnn.pad_sequence(descent.batches, batch_first=True, padding_value=-1)
        rows = rows.to(device)
        counts = rows >= 0
        count = counts.sum(2, keepdim=True).clamp_min(1)
        return cls(rows.clamp_min(0), counts.to(dtype) / count)


def zero_if_finished(gradient: Tensor, steps: list[int], step: int) -> Tensor:
    """Gradients [m, ...], zero for clients that have done all of their steps [m]."""
    moves = torch.tensor([step < count for count in steps], device=gradient.device)
    return gradient * moves.view(-1, *(1 for _ in gradient.shape[1:]))
