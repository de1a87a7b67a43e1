"""Wrappers around the seam: they see what crosses, and algorithms do not notice them.

A wrapper looks at uploads by wrapping the fold that takes them in, so that it works wherever the
folding happens.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.clients import Clients, Each, Fold, Stacked, step_name
from coterie.core.task import Task

Tap = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Tapped:
    """A fold behind a tap: `tap(ids, upload)` says what of a chunk goes through.

    Its result is the pair (ids that went through, result of the fold).
    """

    fold: Fold[Any]
    tap: Tap

    @property
    def on_any_device(self) -> bool:
        """Whether uploads are taken in on whatever device they are."""
        return getattr(self.fold, "on_any_device", False)

    def start(self) -> Any:
        return [], self.fold.start()

    def add(self, total: Any, ids: Tensor, upload: Any) -> Any:
        through, inner = total
        ids, upload = self.tap(ids, upload)
        return total if len(ids) == 0 else ([*through, ids], self.fold.add(inner, ids, upload))

    def merge(self, one: Any, other: Any) -> Any:
        return one[0] + other[0], self.fold.merge(one[1], other[1])

    def finish(self, total: Any) -> Any:
        through, inner = total
        ids = torch.cat([torch.zeros(0, dtype=torch.long), *through]).sort().values
        return ids, self.fold.finish(inner)


class Heard:
    """A function of the driver's that a tap calls with what it saw.

    A tap may run in another process. There, what is heard is taken down, comes back with the
    partial fold, and is replayed where the function is.
    """

    _of: ClassVar[WeakValueDictionary[int, Heard]] = WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self.tell = tell
        self.number = next(self._numbers)
        self._of[self.number] = self

    def __call__(self, what: Any) -> None:
        self.tell(what)

    def __reduce__(self) -> Any:
        return Noted, (self.number,)


@dataclass(frozen=True)
class Noted:
    """What stands for a `Heard` in another process."""

    number: int

    def __call__(self, what: Any) -> None:
        NOTES.append((self.number, what))


NOTES: list[tuple[int, Any]] = []  # what was heard in this process, far from the driver


@contextmanager
def taken_down() -> Iterator[list[tuple[int, Any]]]:
    """What is heard inside, as a list that `replay` takes."""
    NOTES.clear()
    notes: list[tuple[int, Any]] = []
    yield notes
    notes.extend(NOTES)


def replay(notes: list[tuple[int, Any]]) -> None:
    """Tell what was taken down in another process."""
    for number, what in notes:
        Heard._of[number](what)


class Wrapper:
    """Clients behind a tap; a wrapper of its own only says what its tap does."""

    def __init__(self, inner: Clients) -> None:
        self.inner = inner

    @property
    def ids(self) -> Tensor:
        return self.inner.ids

    @property
    def population(self) -> int:
        return self.inner.population

    @property
    def round(self) -> int:
        return self.inner.round

    @property
    def task(self) -> Task:
        return self.inner.task

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        tapped = Tapped(fold or Stacked(), self.tap(step, message))
        _, answer = self.inner.run(step, fold=tapped, **message)
        ids, result = answer
        return ids, result

    def tap(self, step: Callable[..., Any], message: dict[str, Any]) -> Tap:
        """What becomes of the answers to a step, chunk by chunk; here nothing."""
        return lambda ids, upload: (ids, upload)


@dataclass(frozen=True)
class Seen:
    """A tap that lets everything through and tells what it saw of it."""

    look: Callable[[Tensor, Any], Any]
    tell: Heard

    def __call__(self, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        self.tell(self.look(ids, upload))
        return ids, upload


def sizes(ids: Tensor, upload: Any) -> dict[str, int]:
    """The bytes of each uploaded part."""
    return {n: value.numel() * value.element_size() for n, value in upload._asdict().items()}


def replies(ids: Tensor, upload: Any) -> int:
    """How many replies there are."""
    return len(ids)


class Bytes:
    """Bytes that crossed, by client step and part: `down` what was sent, `up` what came back."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str, str], int] = defaultdict(int)

    def total(self, direction: str) -> int:
        return sum(n for (_, way, _), n in self.parts.items() if way == direction)

    def table(self) -> dict[str, dict[str, dict[str, int]]]:
        """step -> direction -> part -> bytes."""
        nested: dict[str, dict[str, dict[str, int]]] = {}
        for (step, way, part), count in sorted(self.parts.items()):
            nested.setdefault(step, {"down": {}, "up": {}})[way][part] = count
        return nested


class Metered(Wrapper):
    """Counts the bytes of every part that crosses: downloads of all who were asked, uploads of all
    whose reply arrived."""

    def __init__(self, inner: Clients, bytes: Bytes) -> None:
        super().__init__(inner)
        self.bytes = bytes

    def only(self, ids: Tensor) -> Metered:
        return Metered(self.inner.only(ids), self.bytes)

    def tap(self, step: Callable[..., Any], message: dict[str, Any]) -> Tap:
        name = step_name(step)
        for part, value in message.items():
            self.bytes.parts[name, "down", part] += len(self.ids) * size_of_one(value)

        parts = self.bytes.parts

        def add(found: dict[str, int]) -> None:
            for part, count in found.items():
                parts[name, "up", part] += count

        return Seen(sizes, Heard(add))


class Watched(Wrapper):
    """Tells how many clients have replied, whenever some have."""

    def __init__(self, inner: Clients, tell: Callable[[int], None]) -> None:
        super().__init__(inner)
        self.tell = tell

    def only(self, ids: Tensor) -> Watched:
        return Watched(self.inner.only(ids), self.tell)

    def tap(self, step: Callable[..., Any], message: dict[str, Any]) -> Tap:
        return Seen(replies, Heard(self.tell))


class Lossy(Wrapper):
    """Loses each reply with probability `rate`, by (seed, round, client, call)."""

    def __init__(self, inner: Clients, rate: float, address: tuple[int | str, ...]) -> None:
        super().__init__(inner)
        self.rate = rate
        self.address = address
        self._calls = [0]

    def only(self, ids: Tensor) -> Lossy:
        narrowed = Lossy(self.inner.only(ids), self.rate, self.address)
        narrowed._calls = self._calls
        return narrowed

    def tap(self, step: Callable[..., Any], message: dict[str, Any]) -> Tap:
        call, rate, address = self._calls[0], self.rate, self.address
        self._calls[0] += 1

        def lose(ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
            draws = [
                torch.rand((), generator=seeds.generator(*address, "lost", call, i)).item()
                for i in ids.tolist()
            ]
            arrives = torch.tensor(draws) >= rate
            return ids[arrives], type(upload)(*(value[arrives] for value in upload))

        return lose


def size_of_one(value: Any) -> int:
    """Bytes that one client downloads for one argument of a step."""
    if isinstance(value, Each):
        return value.rows[0].numel() * value.rows.element_size()
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return 0 if value is None else 8
