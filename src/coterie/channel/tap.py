"""A tap: clients whose replies somebody sees, or changes, before they are folded."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from coterie.core.clients import Clients, Fold, Stacked

# What of a chunk's ids and upload goes through.
Filter = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Tap:
    """Clients whose replies go through a filter; a tap of its own says what the filter does."""

    def __init__(self, inner: Clients) -> None:
        self.inner, self.ids = inner, inner.ids
        self.population, self.round, self.task = inner.population, inner.round, inner.task

    def only(self, ids: Tensor) -> Self:
        """The same clients, narrowed to `ids`; what the tap knows is shared."""
        narrowed = copy(self)
        narrowed.inner = self.inner.only(ids)
        narrowed.ids = narrowed.inner.ids
        return narrowed

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        """Run a client step; who answers are those whose replies went through."""
        filtered = FilteredFold(fold or Stacked(), self.filter(step, message))
        _, (ids, result) = self.inner.run(step, fold=filtered, **message)
        return ids, result

    def filter(self, step: Callable[..., Any], message: dict[str, Any]) -> Filter:
        """What becomes of the replies to a step, chunk by chunk; here nothing."""
        return lambda ids, upload: (ids, upload)


@dataclass(frozen=True)
class WrappedFold:
    """A fold inside another, which carries a list along with what is folded."""

    fold: Fold[Any]

    @property
    def on_any_device(self) -> bool:
        """Whether uploads are taken in on whatever device they are."""
        return getattr(self.fold, "on_any_device", False)

    def start(self) -> Any:
        return [], self.fold.start()


@dataclass(frozen=True)
class FilteredFold(WrappedFold):
    """A fold behind a filter; its result is (ids that went through, result of the fold)."""

    filter: Filter

    def add(self, total: Any, ids: Tensor, upload: Any) -> Any:
        through, inner = total
        ids, upload = self.filter(ids, upload)
        return total if len(ids) == 0 else ([*through, ids], self.fold.add(inner, ids, upload))

    def merge(self, one: Any, other: Any) -> Any:
        return one[0] + other[0], self.fold.merge(one[1], other[1])

    def finish(self, total: Any) -> Any:
        through, inner = total
        ids = torch.cat([torch.zeros(0, dtype=torch.long), *through]).sort().values
        return ids, self.fold.finish(inner)


@dataclass(frozen=True)
class ObservedFold(WrappedFold):
    """A fold that tells what it sees of every chunk: `tell(look(ids, upload))`.

    In another process nobody is told. There what was seen is kept with the partial fold, and told
    when that is merged where the listener is.
    """

    look: Callable[[Tensor, Any], Any]
    tell: Callable[[Any], None] | None

    def __reduce__(self) -> Any:
        return ObservedFold, (self.fold, self.look, None)

    def add(self, total: Any, ids: Tensor, upload: Any) -> Any:
        untold = self._tell(total[0], [self.look(ids, upload)])
        return untold, self.fold.add(total[1], ids, upload)

    def merge(self, one: Any, other: Any) -> Any:
        return self._tell(one[0], other[0]), self.fold.merge(one[1], other[1])

    def finish(self, total: Any) -> Any:
        return self.fold.finish(total[1])

    def _tell(self, untold: list[Any], seen: list[Any]) -> list[Any]:
        """Tell what was seen; what is left to be told elsewhere."""
        if self.tell is None:
            return untold + seen
        for what in seen:
            self.tell(what)
        return untold
