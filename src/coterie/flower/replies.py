"""What may come back from a node: nothing that a client step cannot have returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.flower.wire import BadPacket, Packet, tensor, word

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> shape after the client axis, type
Answers = list[tuple[Tensor, Any]]  # the clients of a node, and what they sent


def checked(
    label: str, spec: Spec, count: int, reply: Packet, *, finite: bool = True
) -> dict[str, Tensor]:
    """The tensors of a reply, if they are what the step `label` returns for so many clients."""
    if word(reply, "fields", list) != list(spec) or set(reply.tensors) != set(spec):
        raise BadPacket(f"{label} returns {', '.join(spec)}, got {', '.join(reply.tensors)}")
    if set(reply.words) != {"fields", "seconds", "startup"}:
        raise BadPacket(f"it says more than {label} does: {', '.join(reply.words)}")
    for name, (shape, kind) in spec.items():
        value = tensor(reply, name)
        if tuple(value.shape) != (count, *shape) or value.dtype != kind:
            raise BadPacket(
                f"{name} of {label} must be {[count, *shape]} of {kind}, "
                f"got {list(value.shape)} of {value.dtype}"
            )
        if finite and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BadPacket(f"{name} of {label} is not finite")
        if kind == torch.int64 and bool((value < 0).any()):  # all are counts or places
            raise BadPacket(f"{name} of {label} is negative")
    return reply.tensors


class Usual:
    """How large the vectors are that clients usually send; far larger ones are outliers."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # times the usual size; 0: whatever is sent is taken
        self.size: dict[tuple[str, str], float] = {}  # (step, field) -> norm of a usual reply

    def only(self, label: str, field: str, answers: Answers) -> tuple[Answers, list[int]]:
        """The answers to a step without the outliers in one field, and whose answers these are."""
        values = [getattr(up, field) for _, up in answers]
        if not values or not values[0].is_floating_point() or values[0][0].numel() < 2:
            return answers, []
        norms = [value.flatten(1).double().norm(dim=1) for value in values]
        middle = float(torch.cat(norms).median())
        before = self.size.get((label, field))
        usual = middle if before is None else max(before, middle)
        if usual == 0:
            return answers, []
        kept: Answers = []
        outliers: list[int] = []
        for (own, up), norm in zip(answers, norms, strict=True):
            fine = norm <= self.limit * usual
            outliers += own[~fine].tolist()
            if bool(fine.any()):
                kept.append((own[fine], type(up)(*(value[fine] for value in up))))
        if before is None or sum(map(len, norms)) > 2:
            self.size[label, field] = usual
        return kept, outliers


def seconds_of(reply: Packet | None) -> list[float]:
    """How long a node computed, and how long it took to get ready to; as far as it can be true."""
    words = {} if reply is None else reply.words
    said = [words.get(name) for name in ("seconds", "startup")]
    return [float(s) if isinstance(s, int | float) and 0 <= s < 1e6 else 0.0 for s in said]
