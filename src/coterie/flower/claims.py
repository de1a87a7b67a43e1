"""How much the samples that a node claims to have may count for.

Where models are weighted by samples, a node that claims very many owns the model. With several
nodes none that claims clients far larger than those of the others counts for more than `most_share`
of all samples: what it sends is weighted down to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.clients import Fold
from coterie.core.fields import Role, roles
from coterie.flower.replies import NodeReply

SEVERAL = 3  # nodes: of two, one always has half
FAR_LARGER = 10  # times the median client of the other nodes


def claim_factors(nodes: Sequence[Tensor], sizes: Tensor, most: float) -> Tensor:
    """By what the samples of each client are multiplied, [m], the same for all of a node.

    nodes  the clients that each node holds
    sizes  [m] samples that they claim
    most   share of all samples that one node may count for

    >>> sizes = torch.tensor([100, 100, 10**6])
    >>> factors = claim_factors([torch.tensor([i]) for i in range(3)], sizes, 0.5)
    >>> (factors * sizes).tolist()
    [100.0, 100.0, 200.0]
    """
    factors = torch.ones(len(sizes), dtype=torch.float64)
    if len(nodes) < SEVERAL or most >= 1:
        return factors
    claimed = torch.stack([sizes[own].double().sum() for own in nodes])
    nobody = claimed.new_zeros(1)  # sums without a difference, which a huge claim would spoil
    before = torch.cat([nobody, claimed[:-1].cumsum(0)])
    behind = torch.cat([claimed[1:].flip(0).cumsum(0).flip(0), nobody])
    allowed = (before + behind) * most / (1 - most)
    for own, factor in zip(nodes, (allowed / claimed).clamp_max(1.0).tolist(), strict=True):
        others = torch.cat([sizes[other] for other in nodes if other is not own])
        if factor < 1 and int(sizes[own].max()) > FAR_LARGER * int(others.median()):
            factors[own] = factor
    return factors


def weigh_down(reply: NodeReply, fold: Fold[Any], factors: Tensor) -> NodeReply:
    """A reply of a node whose clients count for less than they claim, [m]; of others as it is."""
    own = factors[reply.ids]
    if not len(own) or bool((own == 1).all()):
        return reply
    if reply.total is not None:
        if not getattr(fold, "by_size", False):
            return reply
        factor = float(own[0])
        sums = {name: value * factor for name, value in reply.total.sums.items()}
        total = reply.total._replace(weight=reply.total.weight * factor, sums=sums)
        return reply._replace(total=total)
    upload: Any = type(reply.upload)
    sizes = [name for name, role in roles(upload).items() if role is Role.SIZE]
    fields = {name: (getattr(reply.upload, name) * own).long().clamp_min(1) for name in sizes}
    return reply._replace(upload=reply.upload._replace(**fields))
