"""The objective of a descent: the samples of a step, the terms besides the losses, what moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.cohort import Descent
from coterie.core.layout import Layout

Tensors = dict[str, Tensor]  # those of a model, by name


class ObjectiveTerms:
    """The pull, the weight decay and the part that moves of a descent, tensor by tensor.

    They serve a single model and models of many clients alike: with anchors [m, d], tensors are
    [m, ...].
    """

    def __init__(self, layout: Layout, descent: Descent) -> None:
        self.anchor = self.pull = self.moves = None
        anchor, pull = descent.anchor, descent.pull
        if anchor is not None and pull is not None and bool(pull.any()):
            self.anchor, self.pull = layout.unflatten(anchor), layout.unflatten(pull)
        if descent.part is not None:
            self.moves = layout.unflatten(descent.part.to(layout.dtype))
        self.weight_decay = descent.weight_decay

    @property
    def is_empty(self) -> bool:
        """Whether the losses are all there is, and everything moves."""
        return self.anchor is None and self.moves is None and not self.weight_decay

    def select(self, names: Iterable[str], rows: Tensor) -> None:
        """Go on with some tensors only, and with these rows of their anchors."""
        if self.anchor is not None:
            self.anchor = {name: self.anchor[name][rows] for name in names}

    def add_to_gradient(
        self, name: str, gradient: Tensor, now: Tensor, here: slice | None = None
    ) -> Tensor:
        """The gradient of the whole objective where a tensor is `now`, from that of the losses.

        `here` says which of the clients it belongs to, if not to all.
        """
        if self.anchor is not None and self.pull is not None:
            anchor = self.anchor[name] if here is None else self.anchor[name][here]
            gradient = gradient + self.pull[name] * (now - anchor)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * now
        return gradient if self.moves is None else gradient * self.moves[name]


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
