"""What a node sends that folds the uploads of its clients: sums, and what the fold tells of each.

A fold that only adds may be folded anywhere. A node does it where the sums take fewer bytes than
the uploads one by one, so that what it sends does not grow with its clients, except for what the
server may know of each: its cluster, a byte where there are at most 256 of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor

from coterie.core.clients import Fold, declared_fold, is_client_step
from coterie.core.errors import SettingError
from coterie.core.fields import Role, roles
from coterie.core.step_checks import declared_upload
from coterie.flower.plain_data import can_cross
from coterie.flower.wire import BadPacket, Packet
from coterie.vectors.cluster_sums import WEIGHT, PartialSums, sent_rows
from coterie.vectors.folds import ByCluster, WeightedRows

CLUSTER = "cluster of each"  # the tensor that says in which cluster each client is
FOLDS = ByCluster, WeightedRows  # that nodes know
INDEX_BYTES = 8  # of a cluster or a size in an upload


def nodes_can_fold(fold: Fold[Any]) -> TypeGuard[ByCluster | WeightedRows]:
    """Whether a node can be told to make the same fold, and the server to read its sums."""
    return type(fold) in FOLDS and can_cross(fold)


def check_steps_fold(algorithm: object) -> None:
    """Refuse an algorithm with a client step whose uploads nodes cannot add up."""
    for name in dir(type(algorithm)):
        step = getattr(type(algorithm), name)
        fold = declared_fold(step) if is_client_step(step) else None
        if fold not in (None, *FOLDS):
            raise SettingError(
                f"`withhold` must be nothing over a network for {type(algorithm).__name__}, whose "
                f"uploads of {name} nodes cannot add up by {fold.__name__}, got clusters"
            )


def check_steps_declared(algorithm: object) -> None:
    """Refuse an algorithm with a client step that does not say what it returns."""
    for name in dir(type(algorithm)):
        step = getattr(type(algorithm), name)
        if is_client_step(step) and declared_upload(step) is None:
            raise SettingError(
                f"every client step must say what it returns in a run over a network, as in `-> "
                f"Upload`, and {type(algorithm).__name__}.{name} does not"
            )


def folds_on_nodes(fold: Fold[Any], upload: type, sent: Mapping[str, Any], clients: int) -> bool:
    """Whether a node with so many clients is to fold what they upload."""
    if not nodes_can_fold(fold):
        return False
    if isinstance(fold, ByCluster) and fold.withheld:
        return True  # whatever it takes: the server is not to see it
    shapes = fold.term_shapes(sent).values()
    folded = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
    copies = fold.k if isinstance(fold, WeightedRows) else 1
    one = 0
    for like in (*fold.models.values(), *fold.updates.values()):
        row = torch.empty(like) if isinstance(like, int) else sent_rows(sent, like)
        one += copies * row.shape[-1] * row.element_size()
    whole = sum(role in (Role.CLUSTER, Role.SIZE) for role in roles(upload).values())
    return folded + clients * tells_cluster(fold) < clients * (one + INDEX_BYTES * whole)


def tells_cluster(fold: Fold[Any]) -> bool:
    """Whether a partial fold says in which of several clusters each client is."""
    return isinstance(fold, ByCluster) and not fold.withheld and fold.k > 1


def sums_to_send(fold: Fold[Any], total: PartialSums) -> dict[str, Tensor]:
    """The tensors of a partial fold."""
    if not tells_cluster(fold):
        return total.terms
    order = torch.cat(total.ids).argsort()
    small = next(t for t in (torch.uint8, torch.int16, torch.int32) if fits(fold, t))
    return {**total.terms, CLUSTER: torch.cat(total.cluster)[order].to(small)}


def fits(fold: Any, dtype: torch.dtype) -> bool:
    """Whether every cluster of a fold has a number of this type."""
    return bool(fold.k - 1 <= torch.iinfo(dtype).max)


def read_sums(
    fold: Any, sent: Mapping[str, Any], ids: Tensor, sizes: Tensor, reply: Packet
) -> PartialSums:
    """The partial fold in a reply, if clients `ids` with such sizes can have made it."""
    shapes = fold.term_shapes(sent)
    for name, (shape, dtype) in shapes.items():
        term = reply.tensor(name)
        if tuple(term.shape) != shape or term.dtype != dtype:
            raise BadPacket(
                f"the sum of {name} must be {list(shape)} of {dtype}, "
                f"got {list(term.shape)} of {term.dtype}"
            )
        if not bool(torch.isfinite(term).all()):
            raise BadPacket(f"the sum of {name} is not finite")
    weight = reply.tensor(WEIGHT)
    if bool((weight < 0).any()):
        raise BadPacket("a sum of weights is negative")
    sums = {name: reply.tensor(name) for name in shapes if name != WEIGHT}
    if not isinstance(fold, ByCluster):
        return PartialSums(weight, sums, [], [])
    largest = sizes.double() if fold.by_size else torch.ones(len(ids), dtype=torch.float64)
    cluster = torch.zeros(len(ids), dtype=torch.long)
    if tells_cluster(fold):
        told = reply.tensor(CLUSTER)
        if told.shape != ids.shape or told.is_floating_point() or told.dtype == torch.bool:
            raise BadPacket("a folded reply must say in which cluster each client is")
        cluster = told.long()
        if bool((cluster < 0).any()) or bool((cluster >= fold.k).any()):
            raise BadPacket(f"there are {fold.k} clusters, got another")
    if fold.withheld:
        weight, limit = weight.sum(), largest.sum()
    else:
        limit = torch.bincount(cluster, weights=largest, minlength=fold.k)
    if bool((weight > limit).any()) or (not fold.by_size and not torch.equal(weight, limit)):
        raise BadPacket("the weights of a folded reply are not those of its clients")
    known = [] if fold.withheld else [(ids, cluster)]
    return PartialSums(
        reply.tensor(WEIGHT), sums, [each for each, _ in known], [each for _, each in known]
    )
