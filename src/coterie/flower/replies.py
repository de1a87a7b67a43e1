"""What may come back from a node: an enrolment that can be true, and results of client steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.samples import PartKind
from coterie.flower.sample_kinds import decode_kinds
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> shape after the client axis, type
MAX_OUTPUTS = 10**6
Answers = list[tuple[Tensor, Any]]  # the clients of a node, and what they sent


class NodeInfo(NamedTuple):
    """What a node said when it enrolled."""

    names: list[str]  # of its clients
    sizes: Tensor  # [a] training samples
    cluster: list[int] | None  # true clusters, where they are known
    inputs: tuple[PartKind, ...]  # what its samples are like
    target: PartKind  # and their targets
    outputs: int  # that a network needs for these
    tested: bool  # whether its clients have test samples
    frozen: str  # digest of the frozen weights of its network


def read_enrolment(app: App, reply: Packet) -> NodeInfo:
    """What a node says of itself, if it can be true."""
    names = reply.get("clients", list)
    if reply.get("app", str) != app.fingerprint:
        raise BadPacket("it has another app, or another version of coterie")
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise BadPacket("it must name its clients, each once")
    sizes = reply.tensor("sizes")
    if sizes.shape != (len(names),) or sizes.dtype != torch.long or bool((sizes < 1).any()):
        raise BadPacket("it must say how many samples each of its clients has")
    inputs, target = decode_kinds(reply.header.get("samples"))
    outputs = reply.get("outputs", int)
    if not 1 <= outputs <= MAX_OUTPUTS:
        raise BadPacket(f"a network has 1 to {MAX_OUTPUTS} outputs, got {outputs}")
    cluster = reply.header.get("cluster")
    complete = isinstance(cluster, list) and len(cluster) == len(names)
    if cluster is not None and not (complete and all(isinstance(c, int) for c in cluster)):
        raise BadPacket("it must say of all its clients in which true cluster they are, or of none")
    tested, frozen = bool(reply.header.get("tested")), str(reply.header.get("frozen", ""))
    return NodeInfo(names, sizes, cluster, inputs, target, outputs, tested, frozen)


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
