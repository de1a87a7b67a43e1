"""Centre: a model is a point, and a good one is near the samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import DataError
from coterie.tasks.network import NetworkTask, kinds_text


class Centre(NetworkTask):
    """One point among the samples; the loss of a sample is its squared distance from it.

    Nothing is predicted and labels are not looked at. Samples of any shape are taken as vectors of
    `features` numbers, divided by `scale`. A mean is the best centre, so that a gradient step of
    size 1/2 over all samples leads to it.

    >>> task = Centre(2)
    >>> task.losses(task.module(torch.zeros(1, 2)) * 0 + 3, torch.zeros(1)).tolist()
    [18.0]
    """

    predicts = False

    def __init__(
        self, features: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(partial(Point, features, dtype), scale=scale)
        self.features = features

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Squared distances: differences [..., n, d] give [..., n]."""
        return output.square().sum(-1)

    def targets(self, y: Tensor) -> Tensor:
        return y

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse samples of another dimension."""
        found = count_features(x)
        if found != self.features:
            raise DataError(
                f"a centre of {self.features} features needs samples of as many numbers, "
                f"got {found}"
            )


class Point(nn.Module):
    """A point that is drawn from the standard normal distribution; it gives x - centre."""

    def __init__(self, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.randn(features, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - self.centre


def count_features(x: Any) -> int:
    """How many numbers each of stored samples has; refuse samples that are no points."""
    if not isinstance(x, Tensor):
        raise DataError(f"centres are of samples that are one tensor each, got {kinds_text(x)}")
    return x[0].numel()
