"""Models whose first layers are sums of others and of combinations of clients' samples.

They are formed only if somebody looks at them: the sum over clients that started from one model is
one multiple of that model and one product of combinations and samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine.kernels.matmul import sum_of_combinations
from coterie.tensors.lazy import (
    SelectedRows,
    add_cluster_sums,
    as_selected_rows,
    dense,
    same_rows,
    subtract_origin,
)


class BaseModels:
    """Models that clients begin with or are drawn to: shared ones, or each client's own."""

    def __init__(self, models: Tensor) -> None:
        selected = as_selected_rows(models)
        self.shared = selected is not None
        self.models: Tensor = dense(models) if selected is None else selected.models  # [k, d]
        # [m] which of them it is; each client's own is that of its place
        self.index = (
            torch.arange(len(models), device=models.device) if selected is None else selected.index
        )
        self.activations = None if selected is None else selected.activations  # [m, h, n] if known

    def equals(self, other: BaseModels) -> bool:
        """Whether both are the same models."""
        one, two = self.models, other.models
        where = one.data_ptr() == two.data_ptr() and one.stride() == two.stride()
        return where and one.shape == two.shape and torch.equal(self.index, other.index)

    def dense(self, width: int) -> Tensor:
        """The first `width` coordinates of every client's model, [m, width]."""
        models = self.models[:, :width]
        return models[self.index] if self.shared else models

    def are_rows(self, origin: Tensor, index: Tensor) -> bool:
        """Whether client i's model is row `index[i]` of origin [k, d], in memory."""
        if not self.shared or not same_rows(origin, self.models):
            return False
        return len(self.models) == 1 or torch.equal(self.index, index)

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        """Add weighted sums of as many coordinates as `sums` [k, width] has, as a formula does."""
        models = self.models[:, : sums.shape[1]]
        if self.shared:
            SelectedRows(models, self.index).add_to(sums, member, origin)
        else:
            add_cluster_sums(sums, member, models, origin)


class DisplacedModels:
    """Where descent ends: base models, their first layers displaced by combinations of samples.

    A vector begins with the first layer's weights [h, f]; what lies behind them is at hand.
    """

    def __init__(
        self,
        bases: list[tuple[BaseModels, Tensor | None]],
        combinations: Tensor | None,
        x: Tensor,
        rest: Tensor,
        width: int,
    ) -> None:
        self.bases = bases  # what first layers are made of, each with its share [m]; None: 1
        self.combinations = combinations  # [m, h, n] of each client's samples; None: none
        self.x = x  # [m, n, f]
        self.rest = rest  # [m, d - h f] where everything else ended
        self.width = width  # h f
        self.shape = len(rest), width + rest.shape[1]
        self.dtype, self.device = rest.dtype, rest.device

    def dense(self) -> Tensor:
        end = self._with_combinations()
        for base, share in self.bases:
            self._add_base(end, base, share)
        end[:, self.width :] = self.rest
        return end

    def displacements(self, origin: Tensor, index: Tensor) -> Tensor:
        """How far model i is from row `index[i]` of origin [k, d]: [m, d]."""
        moved, width = self._with_combinations(), self.width
        left = True  # whether first layers are yet to be subtracted
        for base, share in self.bases:
            if share is None and left and base.are_rows(origin, index):
                left = False  # they would be added and subtracted again
            else:
                self._add_base(moved, base, share)
        if left:
            moved[:, :width] -= origin[:, :width][index]
        torch.sub(self.rest, origin[:, width:][index], out=moved[:, width:])
        return moved

    def _with_combinations(self) -> Tensor:
        """New models [m, d] whose first layers are the combinations alone; the rest is not set."""
        end = self.rest.new_empty(self.shape)
        first = end[:, : self.width]
        if self.combinations is None:
            first.zero_()
        else:
            h, f = self.combinations.shape[1], self.x.shape[2]
            torch.bmm(self.combinations, self.x, out=first.view(-1, h, f))
        return end

    def _add_base(self, models: Tensor, base: BaseModels, share: Tensor | None) -> None:
        """Add the first layers of base models to those of `models` [m, d]."""
        layers = base.dense(self.width)
        models[:, : self.width] += layers if share is None else share[:, None] * layers

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        width = self.width
        first, rest = sums[:, :width], sums[:, width:]
        origin_first = None if origin is None else origin[:, :width]
        add_cluster_sums(rest, member, self.rest, None if origin is None else origin[:, width:])
        for base, share in self.bases:
            if share is None:  # clients that begin at the origin need not have it added
                base.add_to(first, member, origin_first)
                origin_first = None
            else:
                base.add_to(first, member * share)
        if origin_first is not None:
            subtract_origin(first, member, origin_first)
        if self.combinations is None:
            return
        for total, weights in zip(first, member.to(self.dtype), strict=True):
            here = torch.nonzero(weights).flatten()
            if len(here):
                displacement = sum_of_combinations(self.combinations, self.x, here, weights[here])
                total += displacement.flatten()
