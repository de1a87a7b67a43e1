"""What a node says of itself when it enrols, and what the server makes of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data.federation import Federation, Samples
from coterie.flower.settings import App
from coterie.flower.wire import TYPES, BadPacket, Packet, tensor, word


class Known(NamedTuple):
    """What a node said when it enrolled."""

    names: list[str]
    sizes: Tensor  # [a] training samples
    cluster: list[int] | None  # true clusters, where they are known
    shape: tuple[int, ...]  # of one sample
    types: tuple[torch.dtype, torch.dtype]  # of samples and of targets
    tested: bool  # whether its clients have test samples

    @property
    def size_of(self) -> dict[str, int]:
        """The number of training samples of each client, by name."""
        return dict(zip(self.names, self.sizes.tolist(), strict=True))


def enrolled(app: App, reply: Packet) -> Known:
    """What a node said of itself, checked."""
    names = word(reply, "clients", list)
    if word(reply, "app", str) != app.fingerprint:
        raise BadPacket("it has another app, or another version of coterie")
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise BadPacket("it must name its clients, each once")
    sizes = tensor(reply, "sizes")
    if sizes.shape != (len(names),) or sizes.dtype != torch.long or bool((sizes < 1).any()):
        raise BadPacket("it must say how many samples each of its clients has")
    shape = word(reply, "shape", list)
    types = word(reply, "types", list)
    if not all(isinstance(n, int) and n > 0 for n in shape) or len(types) != 2:
        raise BadPacket("it must say what its samples look like")
    if any(kind not in TYPES for kind in types):
        raise BadPacket("it must say of which type its samples are")
    cluster = reply.words.get("cluster")
    if cluster is not None and (
        not isinstance(cluster, list)
        or len(cluster) != len(names)
        or not all(isinstance(c, int) for c in cluster)
    ):
        raise BadPacket("it must say of all its clients in which true cluster they are, or of none")
    kinds = TYPES[types[0]], TYPES[types[1]]
    return Known(names, sizes, cluster, tuple(shape), kinds, bool(reply.words.get("tested")))


def rehearsal(app: App, known: Known) -> Federation:
    """One client with a few samples of no meaning, of the shape that the nodes have."""
    if app.schema is not None:
        return app.schema.stub(known.shape, known.types[0])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *known.shape, generator=generator)
    x = x.to(known.types[0]) if known.types[0].is_floating_point else (9 * x).to(known.types[0])
    y = torch.arange(2).to(known.types[1])
    data = app.plan.federation
    return Federation(
        Samples(x, y, torch.tensor([0, 2])), class_count=data.class_count, scale=data.pixel_scale
    )
