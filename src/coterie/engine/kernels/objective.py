"""What a local objective has besides the losses, and which numbers move."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from coterie.core.cohort import Descent
from coterie.core.layout import Layout


class ObjectiveTerms:
    """The pull, the weight decay and the part that moves of a descent, tensor by tensor.

    They serve a single model and models of many clients alike: with anchors [m, d], tensors are
    [m, ...].
    """

    def __init__(self, layout: Layout, descent: Descent) -> None:
        self.anchor = self.pull = self.moves = None
        pulls = descent.pull is not None and bool(descent.pull.any())
        if descent.anchor is not None and descent.pull is not None and pulls:
            self.anchor, self.pull = (
                layout.unflatten(descent.anchor),
                layout.unflatten(descent.pull),
            )
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
