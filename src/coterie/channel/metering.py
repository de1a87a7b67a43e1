"""Metering: how many bytes cross between the server and its clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor

from coterie.channel.tap import ObservedFold, Tap
from coterie.core.clients import Clients, Each, Fold, Stacked, step_name


class ByteMeter:
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


class Metering(Tap):
    """Counts the bytes of every part that crosses: downloads of all who were asked, uploads of all
    whose reply arrived."""

    def __init__(self, inner: Clients, meter: ByteMeter) -> None:
        super().__init__(inner)
        self.meter = meter

    def run(
        self, step: Callable[..., Any], *, fold: Fold[Any] | None = None, **message: Any
    ) -> tuple[Tensor, Any]:
        name, parts = step_name(step), self.meter.parts
        for part, value in message.items():
            parts[name, "down", part] += len(self.ids) * download_bytes(value)

        def count_up(found: dict[str, int]) -> None:
            for part, count in found.items():
                parts[name, "up", part] += count

        observed = ObservedFold(fold or Stacked(), upload_bytes, count_up)
        return self.inner.run(step, fold=observed, **message)


def upload_bytes(ids: Tensor, upload: Any) -> dict[str, int]:
    """The bytes of each uploaded part."""
    return {n: value.numel() * value.element_size() for n, value in upload._asdict().items()}


def download_bytes(value: Any) -> int:
    """Bytes that one client downloads for one argument of a step."""
    if isinstance(value, Each):
        return value.rows[0].numel() * value.rows.element_size()
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return 0 if value is None else 8
