"""The objective of a descent: the samples of a step, the terms besides the losses, what moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.kernel import Descent
from coterie.core.layout import Layout
from coterie.core.rows import Rows
from coterie.tensors.optimizers import clip_norms


class ObjectiveTerms:
    """The pull, the clipping, the weight decay and the part that moves, tensor by tensor.

    They serve a single model and models of many clients alike: with anchors [m, d], tensors are
    [m, ...] and `lead` is 1, for one model it is 0.
    """

    def __init__(self, layout: Layout, descent: Descent, lead: int = 1) -> None:
        self.anchor = self.pull = self.moves = None
        anchor, pull = descent.anchor, descent.pull
        if anchor is not None and pull is not None and bool(pull.any()):
            self.anchor, self.pull = layout.unflatten(anchor), layout.unflatten(pull)
        if descent.part is not None:
            self.moves = layout.unflatten(descent.part.to(layout.dtype))
        self.spared = layout.spared
        self.weight_decay, self.clip, self.lead = descent.weight_decay, descent.rule.clip, lead
        alone = self.anchor is None and not self.weight_decay and not self.clip
        self.is_empty = alone and self.moves is None  # the losses are all there is

    def select(self, names: Iterable[str], rows: Tensor) -> None:
        """Go on with some tensors only, and with these rows of their anchors."""
        if self.anchor is not None:
            self.anchor = {name: self.anchor[name][rows] for name in names}

    def gradients(
        self,
        names: Sequence[str],
        losses: list[Tensor],
        now: Iterable[Tensor],
        here: slice | None = None,
    ) -> list[Tensor]:
        """The gradients of the whole objective where tensors are `now`, from those of the losses.

        `here` says which of the clients they belong to, if not to all.
        """
        if self.is_empty:
            return losses
        found, place = losses, tuple(now)
        if self.anchor is not None and self.pull is not None:
            anchors = (self.anchor[name] for name in names)
            found = [
                gradient + self.pull[name] * (w - (anchor if here is None else anchor[here]))
                for name, gradient, w, anchor in zip(names, found, place, anchors, strict=True)
            ]
        if self.clip:
            found = clip_norms(self._moving(names, found), self.clip, self.lead)
        if self.weight_decay:
            found = [
                g if name in self.spared else g + self.weight_decay * w
                for name, g, w in zip(names, found, place, strict=True)
            ]
        return self._moving(names, found)

    def _moving(self, names: Sequence[str], gradients: list[Tensor]) -> list[Tensor]:
        """Gradients that are zero where nothing moves."""
        moves = self.moves
        if moves is None:
            return gradients
        return [g * moves[name] for name, g in zip(names, gradients, strict=True)]


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
        place, weight = rows.clamp_min(0), counts.to(dtype) / count
        if descent.weights is not None:
            weight = weight * descent.weights.gather(1, place.flatten(1)).view_as(weight)
        return cls(place, weight)


def full_batch_weights(rows: Rows, dtype: torch.dtype, weights: Tensor | None) -> Tensor:
    """What each row counts in its client's mean [m, n], where samples have `weights` [m, n]."""
    return rows.weights(dtype) if weights is None else rows.weights(dtype) * weights


def zero_if_finished(gradient: Tensor, steps: list[int], step: int) -> Tensor:
    """Gradients [m, ...], zero for clients that have done all of their steps [m]."""
    moves = torch.tensor([step < count for count in steps], device=gradient.device)
    return gradient * moves.view(-1, *(1 for _ in gradient.shape[1:]))
