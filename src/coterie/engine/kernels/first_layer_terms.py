"""What happens to first layers in a descent besides gradients, where they stay in sample space."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.kernel import Descent
from coterie.engine.kernels.objective import zero_if_finished


class FirstLayerTerms(NamedTuple):
    """What happens to first layers in a descent besides the gradients of losses."""

    lr: float  # step size
    trained: bool  # whether they move at all
    pull: float  # strength of the pull towards the anchor
    weight_decay: float  # strength of the pull towards zero
    momentum: float = 0.0  # share of the last step that the next one keeps

    @classmethod
    def of(cls, descent: Descent, width: int) -> FirstLayerTerms | None:
        """Those of the first `width` coordinates; None if these do not stay in the span."""
        rule = descent.rule
        if rule.clip or rule.optimizer == "adam":
            return None
        trained, pull = True, 0.0
        if descent.part is not None:
            moving = int(descent.part[:width].sum())
            if moving not in (0, width):
                return None
            trained = moving > 0
        if descent.anchor is not None and descent.pull is not None:
            low, high = descent.pull[:width].aminmax()
            if low != high:
                return None
            pull = float(low)
        momentum = rule.momentum if rule.optimizer == "momentum" else 0.0
        return cls(rule.lr, trained, pull, descent.weight_decay, momentum)

    @property
    def strength(self) -> float:
        """How much of where first layers are is in their gradient."""
        return self.pull + self.weight_decay

    @property
    def shrinkage(self) -> float:
        """What a step leaves of where first layers were."""
        return 1 - self.lr * self.strength if self.trained else 1.0

    def base_shares(self, steps: list[int], like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What is left of the start after so many steps [m], and how much of the anchor came in.

        None stands for all of the one and nothing of the other.
        """
        if not self.trained or self.strength == 0:
            return None, None
        if self.momentum:
            shares = self._shares_with_momentum(max(steps))
            left, came = ([share[count] for count in steps] for share in shares)
        else:
            left = [self.shrinkage**count for count in steps]
            came = [self.pull / self.strength * (1 - share) for share in left]
        return tensor_like(left, like), tensor_like(came, like) if self.pull else None

    def _shares_with_momentum(self, steps: int) -> tuple[list[float], list[float]]:
        """The same two after 0, 1, ... steps; the velocity consists of start and anchor as well."""
        left, came = [1.0], [0.0]
        of_start = of_anchor = 0.0
        for _ in range(steps):
            of_start = self.momentum * of_start + self.strength * left[-1]
            of_anchor = self.momentum * of_anchor + self.strength * came[-1] - self.pull
            left.append(left[-1] - self.lr * of_start)
            came.append(came[-1] - self.lr * of_anchor)
        return left, came


class SparedBias:
    """First-layer biases [b, h] that weight decay spares while the rest of their layer shrinks."""

    def __init__(self, terms: FirstLayerTerms, start: Tensor, anchor: Tensor | None) -> None:
        self.terms, self.anchor = terms, anchor
        self.now = start.clone()
        self.velocity = torch.zeros_like(start)

    def step(self, slopes: Tensor, steps: list[int], step: int) -> None:
        """A step along slopes [b, h, n], for clients that have not done all of their steps [b]."""
        terms, gradient = self.terms, slopes.sum(2)
        if self.anchor is not None:
            gradient.add_(self.now - self.anchor, alpha=terms.pull)
        self.velocity.mul_(terms.momentum).add_(gradient)
        self.now.sub_(zero_if_finished(self.velocity, steps, step), alpha=terms.lr)


def tensor_like(values: list[float], like: Tensor) -> Tensor:
    """Numbers in the type and on the device of another tensor."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)
