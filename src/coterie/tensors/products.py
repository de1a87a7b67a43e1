"""Gradients of weights as what they are made of: sums of products, which need not be formed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class SummedProducts(NamedTuple):
    """The sum over samples of what a layer gives back times what it was given, for m models.

    >>> slopes, inputs = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    >>> SummedProducts(slopes, inputs).form().tolist()
    [[[13.0, 16.0]]]
    """

    slopes: Tensor  # [m, n, out]
    inputs: Tensor  # [m, n, in]

    def form(self) -> Tensor:
        """The sums, [m, out, in]."""
        return torch.bmm(self.slopes.mT, self.inputs)

    def step(self, weight: Tensor, lr: float) -> None:
        """Subtract `lr` times the sums from weights [m, out, in], which change in place."""
        weight.baddbmm_(self.slopes.mT, self.inputs, alpha=-lr)


def form(gradient: Any) -> Tensor:
    """A gradient as a tensor, whether it was formed or not."""
    formed: Tensor = gradient.form() if isinstance(gradient, SummedProducts) else gradient
    return formed
