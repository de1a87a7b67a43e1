"""A client step over the network: its message to each node, and how replies are read.

Nothing is known of a reply beforehand but the roles of its fields, the sums of its fold where nodes
fold, and that replies must agree: what has another shape or type than most clients have is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.core.clients import Call, Fold, LinearFold, Traffic, step_name
from coterie.core.errors import CoterieError, SettingError
from coterie.core.step_checks import declared_upload
from coterie.flower.folded import (
    CLUSTER,
    folds_on_nodes,
    nodes_can_fold,
    read_sums,
    tells_cluster,
)
from coterie.flower.outliers import OutlierFilter, judged_fields, vector_norms
from coterie.flower.plain_data import can_cross, encode_plain
from coterie.flower.replies import (
    NodeReply,
    check_fields,
    disagreement,
    most_clusters,
    read_upload,
    who_answered,
)
from coterie.flower.wire import Packet, encode_arguments
from coterie.registry import algorithm_name


class StepExchange:
    """What crosses for one call: messages to nodes, and their replies.

    sizes  [m] how many training samples each client was enrolled with
    """

    def __init__(self, call: Call, fold: Fold[Any], sizes: Tensor) -> None:
        self.call, self.fold, self.sizes = call, fold, sizes
        self.label, self.upload = step_name(call.step), upload_type(call.step)
        # A channel of one's own is applied by the server, to the uploads themselves.
        self.channel_crosses = all(map(can_cross, call.channel))
        self.must_fold = call.withheld and isinstance(fold, LinearFold)
        if self.must_fold and not (self.channel_crosses and nodes_can_fold(fold)):
            raise SettingError(
                f"`withhold` must be nothing over a network where {self.label} is asked for, whose "
                "uploads nodes cannot add up, got clusters"
            )

    def folds(self, ids: Tensor) -> bool:
        """Whether the node of clients `ids` is to fold what they upload."""
        call = self.call
        return self.must_fold or (
            self.channel_crosses and folds_on_nodes(self.fold, self.upload, call.message, len(ids))
        )

    def contents(self, ids: Tensor) -> Packet:
        """What the message to the node of clients `ids` says of the step."""
        call, folds = self.call, self.folds(ids)
        header, tensors = encode_step(call.step, call.message, ids, whole=folds)
        header |= {
            "round": call.round,
            "address": list(call.address),
            "trains": call.trains,
            "fold": encode_plain(self.fold, "fold", tensors) if folds else None,
            "channel": [
                encode_plain(each, f"channel.{place}", tensors)
                for place, each in enumerate(call.channel if self.channel_crosses else ())
            ],
        }
        return Packet(header, tensors)

    def read(self, ids: Tensor, reply: Packet) -> NodeReply:
        """The reply of the node of clients `ids`; the listener is told."""
        folded, answered = self.folds(ids), who_answered(ids, reply)
        fields = list(self.upload._fields)  # type: ignore[attr-defined]
        if folded:
            told = [CLUSTER] if tells_cluster(self.fold) else []
            fields = [*self.fold.term_shapes(self.call.message), *told]  # type: ignore[attr-defined]
        check_fields(self.label, fields if len(answered) else [], reply)
        if not len(answered):
            return NodeReply(answered)
        sizes = self.sizes[answered]
        if folded:
            total = read_sums(self.fold, self.call.message, answered, sizes, reply)
            found = NodeReply(answered, total=total)
        else:
            k = most_clusters(self.call, self.fold, len(self.sizes))
            found = NodeReply(answered, read_upload(self.label, self.upload, sizes, k, reply))
        if self.call.listener is not None:
            crossed = {n: v.numel() * v.element_size() for n, v in reply.tensors.items()}
            self.call.listener.on_replies(self.call, Traffic(len(answered), crossed))
        return found

    def sift(
        self, replies: list[NodeReply], outliers: OutlierFilter
    ) -> tuple[list[NodeReply], dict[int, str]]:
        """The replies without those that differ from most; why each client is left out."""
        refused: dict[int, str] = {}
        left = [each for each in replies if len(each.ids)]
        stacked = [each for each in left if each.total is None]
        for place, reason in disagreement(self.label, stacked).items():
            refused |= dict.fromkeys(stacked[place].ids.tolist(), reason)
        left = without(left, refused)
        for field in judged_fields(self.upload):
            found = [(r, vector_norms(r, field, self.fold, self.call.message)) for r in left]
            judged = [(reply, norm) for reply, norm in found if norm is not None]
            usual = outliers.find_usual(self.label, field, [norm for _, norm in judged])
            reason = f"{field} of {self.label} is more than {outliers.limit:g} times the usual"
            for (reply, _), fine in zip(judged, usual, strict=True):
                refused |= dict.fromkeys(reply.ids[~fine.expand(len(reply.ids))].tolist(), reason)
            left = without(left, refused)
        return left, refused


def without(replies: list[NodeReply], refused: dict[int, str]) -> list[NodeReply]:
    """The replies of those who are not refused; what a node folded is taken whole or not at all."""
    found = []
    for ids, upload, total in replies:
        fine = torch.tensor([i not in refused for i in ids.tolist()], dtype=torch.bool)
        if bool(fine.all()):
            found.append(NodeReply(ids, upload, total))
        elif upload is not None and bool(fine.any()):
            found.append(NodeReply(ids[fine], type(upload)(*(value[fine] for value in upload))))
    return found


def upload_type(step: Callable[..., Any]) -> type:
    """The named tuple that a client step returns, as its annotation says."""
    found: type | None = declared_upload(step)
    if found is None or not hasattr(found, "_fields"):
        raise CoterieError(f"{step_name(step)} must say which named tuple it returns: `-> Upload`")
    return found


def encode_step(
    step: Callable[..., Any], arguments: dict[str, Any], ids: Tensor, *, whole: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors that name a client step and what clients `ids` are sent with it."""
    if isinstance(step, partial):
        assert not step.args
        arguments = {**step.keywords, **arguments}
        step = step.func
    algorithm = step.__self__  # type: ignore[attr-defined]
    plain, tensors = encode_arguments(arguments, ids, whole=whole)
    of = algorithm_name(algorithm)
    header = {"step": step.__name__, "of": of, "settings": asdict(algorithm), "plain": plain}
    return header, tensors
