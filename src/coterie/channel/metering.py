"""Metering: how many bytes cross between the server and its clients."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor

from coterie.core.clients import Call, Each, Traffic, step_name


class ByteMeter:
    """Bytes that crossed, by client step and part: `down` what was sent, `up` what came back.

    It is a listener. Downloads are those of all who were asked, uploads of all whose reply arrived.
    """

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str, str], int] = defaultdict(int)

    def on_call(self, call: Call) -> None:
        name = step_name(call.step)
        for part, value in call.message.items():
            self.parts[name, "down", part] += len(call.ids) * download_bytes(value)

    def on_replies(self, call: Call, traffic: Traffic) -> None:
        name = step_name(call.step)
        for part, count in traffic.bytes.items():
            self.parts[name, "up", part] += count

    def total(self, direction: str) -> int:
        return sum(n for (_, way, _), n in self.parts.items() if way == direction)

    def table(self) -> dict[str, dict[str, dict[str, int]]]:
        """step -> direction -> part -> bytes."""
        nested: dict[str, dict[str, dict[str, int]]] = {}
        for (step, way, part), count in sorted(self.parts.items()):
            nested.setdefault(step, {"down": {}, "up": {}})[way][part] = count
        return nested


def download_bytes(value: Any) -> int:
    """Bytes that one client downloads for one argument of a step."""
    if isinstance(value, Each):
        return value.rows[0].numel() * value.rows.element_size()
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return 0 if value is None else 8
