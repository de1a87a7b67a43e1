"""What may come back from a node: an enrolment that can be true, and results of client steps."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import traits_of
from coterie.core.clients import Call, Fold
from coterie.core.fields import Role, roles
from coterie.core.sample_kinds import PartKind
from coterie.flower.sample_kinds import decode_kinds
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet

REPLY_HEADER = {"fields", "kept", "lost", "seconds", "startup"}
MAX_OUTPUTS = 10**6
MAX_CLIENTS = 10**6  # of one node
MAX_NAME = 200  # characters of a client's name
MAX_NUMBERS = 10**8  # in one sample


class NodeInfo(NamedTuple):
    """What a node said when it enrolled."""

    names: list[str]  # of its clients
    sizes: Tensor  # [a] training samples
    validation: Tensor  # [a] validation samples, 0 without a validation part
    cluster: list[int] | None  # true clusters, where they are known
    inputs: tuple[PartKind, ...]  # what its samples are like
    target: PartKind  # and their targets
    outputs: int  # that a network needs for these
    tested: bool  # whether its clients have test samples
    scale: float  # by which features are divided
    frozen: str  # digest of the frozen weights of its network


def read_enrolment(app: App, reply: Packet) -> NodeInfo:
    """What a node says of itself, if it can be true."""
    names = reply.get("clients", list)
    if reply.get("app", str) != app.fingerprint:
        raise BadPacket("it has another app, or another version of coterie")
    texts = all(isinstance(n, str) and 0 < len(n) <= MAX_NAME for n in names)
    if not (names and texts and len(set(names)) == len(names) <= MAX_CLIENTS):
        raise BadPacket(f"it must name its clients, each once, in up to {MAX_NAME} letters")
    sizes = reply.tensor("sizes")
    if sizes.shape != (len(names),) or sizes.dtype != torch.long or bool((sizes < 1).any()):
        raise BadPacket("it must say how many samples each of its clients has")
    validation = reply.tensors.get("validation", torch.zeros_like(sizes))
    if validation.shape != sizes.shape or validation.dtype != torch.long or (validation < 0).any():
        raise BadPacket("it must say how many validation samples each of its clients has")
    most = app.network.most_samples
    if bool((sizes > most).any()) or bool((validation > most).any()):
        raise BadPacket(f"a client of this run may have at most {most:,} samples (`most_samples`)")
    inputs, target = decode_kinds(reply.header.get("samples"))
    if any(math.prod(kind.shape) > MAX_NUMBERS for kind in (*inputs, target)):
        raise BadPacket(f"a sample may have at most {MAX_NUMBERS:,} numbers")
    outputs = reply.get("outputs", int)
    if not 1 <= outputs <= MAX_OUTPUTS:
        raise BadPacket(f"a network has 1 to {MAX_OUTPUTS} outputs, got {outputs}")
    cluster = reply.header.get("cluster")
    known = cluster if isinstance(cluster, list) and len(cluster) == len(names) else [None]
    if cluster is not None and not all(type(c) is int and 0 <= c < MAX_CLIENTS for c in known):
        raise BadPacket("it must say of all its clients in which true cluster they are, or of none")
    scale = reply.get("scale", float)
    if not (math.isfinite(scale) and scale > 0):
        raise BadPacket("it must say by what its features are divided")
    tested, frozen = bool(reply.header.get("tested")), str(reply.header.get("frozen", ""))
    kinds = (inputs, target, outputs, tested, scale, frozen)
    return NodeInfo(names, sizes, validation, cluster, *kinds)


def check_fields(label: str, fields: list[str], reply: Packet) -> None:
    """Refuse a reply to `label` that has other fields, or says more than a reply does."""
    if reply.get("fields", list) != fields or set(reply.tensors) != set(fields):
        raise BadPacket(f"{label} returns {', '.join(fields)}, got {', '.join(reply.tensors)}")
    if set(reply.header) != REPLY_HEADER:
        raise BadPacket(f"it says more than {label} does: {', '.join(reply.header)}")
    reply.get("kept", bool)


def who_answered(ids: Tensor, reply: Packet) -> Tensor:
    """Which of the clients `ids` of a message have answered: all but those lost in the channel."""
    lost = reply.get("lost", list)
    if not all(type(place) is int and 0 <= place < len(ids) for place in lost):
        raise BadPacket("it must say whose replies were lost")
    arrived = torch.ones(len(ids), dtype=torch.bool)
    arrived[lost] = False
    return ids[arrived]


def most_clusters(call: Call, fold: Fold[Any], clients: int) -> int:
    """How many clusters the uploads of a call may name: as many as its fold has.

    Without, as many as the algorithm declares; where it declares nothing, as many as there are
    clients, or rows that are sent to all of them.
    """
    step = call.step.func if isinstance(call.step, partial) else call.step
    algorithm = getattr(step, "__self__", None)
    of_fold = getattr(fold, "k", None)
    declared = getattr(algorithm, traits_of(algorithm).clusters or "", None)
    sent = [len(v) for v in call.message.values() if isinstance(v, Tensor) and v.dim() > 1]
    return int(of_fold or declared or max([*sent, clients]))


def read_upload(label: str, kind: type, sizes: Tensor, k: int, reply: Packet) -> Any:
    """The upload in a reply, if each field is what its role says.

    sizes  [a] how many samples the clients who answered have
    k      how many clusters there are
    """
    for name, role in roles(kind).items():
        value = reply.tensor(name)
        if value.dim() == 0 or len(value) != len(sizes):
            raise BadPacket(f"{name} of {label} must have {len(sizes)} rows, one for each client")
        if role in (Role.CLUSTER, Role.SIZE):
            check_whole_numbers(label, name, value)
        if role is Role.CLUSTER and bool((value >= k).any()):
            raise BadPacket(f"{label} knows {k} clusters, got another")
        if role is Role.SIZE and bool(((value < 1) | (value > sizes)).any()):
            raise BadPacket(
                f"{name} of {label} must be at least 1 and at most the samples that its clients "
                "were enrolled with"
            )
        if value.is_floating_point():
            bad = (
                value.isnan() if role is Role.LOSS else ~value.isfinite()
            )  # a loss may be infinite
            if bool(bad.any()):
                raise BadPacket(f"{name} of {label} is not finite")
    return kind(*(reply.tensor(name) for name in roles(kind)))


def check_whole_numbers(label: str, name: str, value: Tensor) -> None:
    """Refuse what is not one whole number for each client, from 0 on."""
    if value.dim() != 1 or value.dtype != torch.int64 or bool((value < 0).any()):
        raise BadPacket(f"{name} of {label} must be one whole number for each client, from 0 on")


class NodeReply(NamedTuple):
    """What came from a node: the uploads of its clients, or a partial fold of them."""

    ids: Tensor  # [a] the clients who answered
    upload: Any = None
    total: Any = None


def disagreement(label: str, replies: list[NodeReply]) -> dict[int, str]:
    """Which replies have fields of another shape or type than those of most clients, and how."""
    votes: dict[Any, int] = {}
    kinds = [upload_kinds(reply.upload) if len(reply.ids) else None for reply in replies]
    for reply, kind in zip(replies, kinds, strict=True):
        if kind is not None:
            votes[kind] = votes.get(kind, 0) + len(reply.ids)
    usual = max(votes, key=lambda kind: votes[kind], default=None)
    found: dict[int, str] = {}
    for place, kind in enumerate(kinds):
        if kind is not None and usual is not None and kind != usual:
            name, shape, dtype = next(
                one for one, other in zip(kind, usual, strict=True) if one != other
            )
            found[place] = (
                f"{name} of {label} is {list(shape)} of {dtype}, unlike that of most clients"
            )
    return found


def upload_kinds(upload: Any) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
    """Name, shape after the client axis and type of each field."""
    return tuple((n, tuple(v.shape[1:]), v.dtype) for n, v in upload._asdict().items())


def reported_seconds(reply: Packet | None) -> list[float]:
    """How long a node says that it computed, and started; 0 where that cannot be true."""
    header = {} if reply is None else reply.header
    reported = [header.get(name) for name in ("seconds", "startup")]
    return [float(s) if isinstance(s, int | float) and 0 <= s < 1e6 else 0.0 for s in reported]
