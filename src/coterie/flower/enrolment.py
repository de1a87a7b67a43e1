"""What a node says of itself when it enrols, and a placeholder for its data on the server."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data.federation import Federation, Samples
from coterie.flower.settings import App
from coterie.flower.wire import TYPES, BadPacket, Packet


class NodeInfo(NamedTuple):
    """What a node said when it enrolled."""

    names: list[str]  # of its clients
    sizes: Tensor  # [a] training samples
    cluster: list[int] | None  # true clusters, where they are known
    shape: tuple[int, ...]  # of one sample
    types: tuple[torch.dtype, torch.dtype]  # of samples and of targets
    tested: bool  # whether its clients have test samples


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
    shape, types = reply.get("shape", list), reply.get("types", list)
    if not all(isinstance(n, int) and n > 0 for n in shape) or len(types) != 2:
        raise BadPacket("it must say which shape its samples have")
    if any(kind not in TYPES for kind in types):
        raise BadPacket("it must say of which type its samples are")
    cluster = reply.header.get("cluster")
    if cluster is not None and (
        not isinstance(cluster, list)
        or len(cluster) != len(names)
        or not all(isinstance(c, int) for c in cluster)
    ):
        raise BadPacket("it must say of all its clients in which true cluster they are, or of none")
    kinds = TYPES[types[0]], TYPES[types[1]]
    return NodeInfo(names, sizes, cluster, tuple(shape), kinds, bool(reply.header.get("tested")))


def placeholder_federation(app: App, node: NodeInfo) -> Federation:
    """One client with two made-up samples, of the shape and type that the nodes' samples have.

    The server carries out client steps on it to know what shapes they return.
    """
    if app.schema is not None:
        return app.schema.stub(node.shape, node.types[0])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *node.shape, generator=generator)
    x = x.to(node.types[0]) if node.types[0].is_floating_point else (9 * x).to(node.types[0])
    y = torch.arange(2).to(node.types[1])
    data = app.plan.federation
    return Federation(
        Samples(x, y, torch.tensor([0, 2])), class_count=data.class_count, scale=data.pixel_scale
    )
