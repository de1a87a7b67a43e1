"""What may come back from a node: nothing that a client step cannot have returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.flower.wire import BadPacket, Packet

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> shape after the client axis, type
Answers = list[tuple[Tensor, Any]]  # the clients of a node, and what they sent


def check_reply(
    label: str, spec: Spec, count: int, reply: Packet, *, finite: bool = True
) -> dict[str, Tensor]:
    """The tensors of a reply, if they are what the step `label` returns for so many clients."""
    if reply.get("fields", list) != list(spec) or set(reply.tensors) != set(spec):
        raise BadPacket(f"{label} returns {', '.join(spec)}, got {', '.join(reply.tensors)}")
    if set(reply.header) != {"fields", "seconds", "startup"}:
        raise BadPacket(f"it says more than {label} does: {', '.join(reply.header)}")
    for name, (shape, kind) in spec.items():
        value = reply.tensor(name)
        if tuple(value.shape) != (count, *shape) or value.dtype != kind:
            raise BadPacket(
                f"{name} of {label} must be {[count, *shape]} of {kind}, "
                f"got {list(value.shape)} of {value.dtype}"
            )
        if finite and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BadPacket(f"{name} of {label} is not finite")
        if kind == torch.int64 and bool((value < 0).any()):  # all are counts or indices
            raise BadPacket(f"{name} of {label} is negative")
    return reply.tensors


class OutlierFilter:
    """Refuses vectors that are far larger than those that clients usually send.

    limit  how many times the usual norm a vector may have; 0: any
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.usual_norm: dict[tuple[str, str], float] = {}  # of a field, by step and field

    def remove_outliers(
        self, label: str, field: str, answers: Answers
    ) -> tuple[Answers, list[int]]:
        """The answers to a step without the outliers in one field, and whose answers these are."""
        values = [getattr(upload, field) for _, upload in answers]
        if not values or not values[0].is_floating_point() or values[0][0].numel() < 2:
            return answers, []
        norms = [value.flatten(1).double().norm(dim=1) for value in values]
        median = float(torch.cat(norms).median())
        before = self.usual_norm.get((label, field))
        usual = median if before is None else max(before, median)
        if usual == 0:
            return answers, []
        accepted: Answers = []
        outliers: list[int] = []
        for (ids, upload), norm in zip(answers, norms, strict=True):
            fine = norm <= self.limit * usual
            outliers += ids[~fine].tolist()
            if bool(fine.any()):
                accepted.append((ids[fine], type(upload)(*(value[fine] for value in upload))))
        if before is None or sum(map(len, norms)) > 2:
            self.usual_norm[label, field] = usual
        return accepted, outliers


def reported_seconds(reply: Packet | None) -> list[float]:
    """How long a node says that it computed, and started; 0 where that cannot be true."""
    header = {} if reply is None else reply.header
    reported = [header.get(name) for name in ("seconds", "startup")]
    return [float(s) if isinstance(s, int | float) and 0 <= s < 1e6 else 0.0 for s in reported]
