"""Models that have a part of their own and share the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SharedTrunk:
    """A model in two: the coordinates of a part, which is each one's own, and a common trunk.

    >>> head = SharedTrunk(torch.tensor([False, True, False]))
    >>> head.whole(torch.tensor([[5.0], [6.0]]), torch.tensor([1.0, 2.0]))
    tensor([[1., 5., 2.],
            [1., 6., 2.]])
    """

    part: Tensor  # [d] which coordinates are each one's own, as `Layout.part` gives it
    frozen: bool = False  # whether the trunk stays as it is while models are trained

    @property
    def moves(self) -> Tensor | None:
        """The coordinates [d] that training moves; None: all of them."""
        return self.part if self.frozen else None

    def parts(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Models [..., d] as what is their own [..., p] and the trunk [..., d - p]."""
        if bool(self.part.all()):
            return models, torch.empty(*models.shape[:-1], 0, dtype=models.dtype)
        return models[..., self.part], models[..., ~self.part]

    def moving_parts(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The same, the trunk being empty [..., 0] if it is frozen."""
        own, trunk = self.parts(models)
        return own, trunk[..., :0] if self.frozen else trunk

    def whole(self, own: Tensor, trunk: Tensor) -> Tensor:
        """Models [..., d] of what is their own and the trunk; undoes `parts`.

        The two broadcast over their leading axes, so that one trunk serves k heads.
        """
        if bool(self.part.all()):
            return own
        lead = torch.broadcast_shapes(own.shape[:-1], trunk.shape[:-1])
        models = own.new_empty(*lead, self.part.numel())
        models[..., self.part] = own.expand(*lead, own.shape[-1])
        models[..., ~self.part] = trunk.expand(*lead, trunk.shape[-1])
        return models
