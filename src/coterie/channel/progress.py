"""Progress: how many clients have replied so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from coterie.channel.tap import ObservedFold, Tap
from coterie.core.clients import Clients, Fold, Stacked


class CountReplies(Tap):
    """Tells how many clients have replied, whenever some have."""

    def __init__(self, inner: Clients, tell: Callable[[int], None]) -> None:
        super().__init__(inner)
        self.tell = tell

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        observed = ObservedFold(fold or Stacked(), reply_count, self.tell)
        return self.inner.run(step, fold=observed, **message)


def reply_count(ids: Tensor, upload: Any) -> int:
    """How many replies there are."""
    return len(ids)
