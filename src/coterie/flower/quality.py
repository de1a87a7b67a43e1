"""The quality of models in full over a network: nodes send sums, no prediction leaves them.

AUC and average precision then are those of histograms, which nodes add up over their clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.task import Task
from coterie.evaluation.probabilities import (
    BINS,
    CONFIDENCE_BINS,
    CURVE_BINS,
    ProbabilitySums,
)
from coterie.evaluation.quality import QualitySums
from coterie.evaluation.sums import SummedScores
from coterie.flower.replies import NodeReply, check_fields
from coterie.flower.wire import BadPacket, Packet

OF_CONSTANT = [f"constant_{name}" for name in SummedScores._fields]


class QualityExchange:
    """What crosses when clients judge models in full: messages to nodes, and their replies.

    contents  makes the message by which the same models are scored
    constant  the output [c] that is scored beside them, if any
    tuned     [a] which of the clients served use the model that they fine-tuned; None: all do
    groups    how many clusters nodes tell apart; 1: none
    """

    def __init__(
        self,
        contents: Callable[[Tensor], Packet],
        task: Task,
        serving: Serving,
        constant: Tensor | None,
        tuned: Tensor | None,
        *,
        tune: bool,
        groups: int,
    ) -> None:
        self.models, self.task, self.serving = contents, task, serving
        self.constant, self.tuned, self.tune, self.groups = constant, tuned, tune, groups

    def contents(self, ids: Tensor) -> Packet:
        """What the message to the node of clients `ids` says."""
        header, tensors = self.models(ids)
        header = {**header, "quality": True, "map": "", "groups": self.groups}
        header["tune"] = header["tune"] or self.tune
        tensors, place = dict(tensors), torch.searchsorted(self.serving.ids, ids)
        if self.constant is not None:
            tensors["constant"] = self.constant
        if self.tuned is not None:
            tensors["tuned"] = self.tuned[place]
        if self.groups > 1:
            tensors["group"] = self.serving.cluster[place]
        return Packet(header, tensors)

    @property
    def fields(self) -> list[str]:
        """The names of what a node sends."""
        beside = [] if self.constant is None else OF_CONSTANT
        of_classes = hasattr(self.task, "class_logits")
        return ["scores", "clients", *beside, *(ProbabilitySums._fields if of_classes else ())]

    def read(self, ids: Tensor, reply: Packet) -> NodeReply:
        """The reply of the node of clients `ids`: a row of sums."""
        check_fields("score", self.fields, reply)
        clients = reply.tensor("clients")
        if clients.shape != (self.groups,) or clients.dtype != torch.int64:
            raise BadPacket(f"clients must be {self.groups} whole numbers, one for each cluster")
        if bool((clients < 0).any()) or int(clients.sum()) > len(ids):
            raise BadPacket(f"the clients of all clusters must be at most {len(ids)} together")
        if len(reply.tensor("scores")) != self.groups:
            raise BadPacket(f"scores must have {self.groups} rows, one for each cluster")
        if self.constant is not None:
            self.check_constant(reply)
        if "histogram" in self.fields:
            check_probability_sums(read_probabilities(reply.tensors), len(ids))
        rows = {name: reply.tensor(name)[None] for name in self.fields}
        return NodeReply(ids, ReplyRow(rows))

    def check_constant(self, reply: Packet) -> None:
        """Refuse sums of the constant prediction that are not like those of the models."""
        total, clients, metrics, known = (reply.tensor(name) for name in OF_CONSTANT)
        like = tuple(reply.tensor("scores").shape[1:]) == tuple(total.shape)
        each = metrics.shape == known.shape and metrics.shape[1:] == clients.shape == (1,)
        if not (like and each):
            raise BadPacket("the constant must have the sums that models have")
        if bool(metrics.isnan().any()) or bool(((known < 0) | (known > clients)).any()):
            raise BadPacket("the metrics of the constant must be sums over known clients")


class ReplyRow:
    """What a node sent, as a row of each field."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        self.rows = rows

    def _asdict(self) -> dict[str, Tensor]:
        return self.rows

    def sums(self) -> QualitySums:
        """The sums that it stands for."""
        return join_quality({name: value[0] for name, value in self.rows.items()})


def check_probability_sums(sums: ProbabilitySums, clients: int) -> None:
    """Refuse sums of probabilities that so many clients cannot have made."""
    classes = sums.confusion.shape[-1] if sums.confusion.dim() else 0
    shapes = {
        "histogram": (1 if classes == 2 else classes, 2, BINS),
        "confusion": (classes, classes),
        "confidence": (CONFIDENCE_BINS, 3),
        "curve": (CURVE_BINS, 3),
        "log_loss": (1,),
        "by_client": (2, 2),
    }
    for name, shape in shapes.items():
        value = getattr(sums, name)
        if tuple(value.shape) != shape:
            raise BadPacket(f"{name} must be {list(shape)}, got {list(value.shape)}")
        counts = name in ("histogram", "confusion")
        if (value.dtype != torch.int64) if counts else (value.dtype != torch.float64):
            kind = "whole numbers" if counts else "real numbers"
            raise BadPacket(f"{name} must be {kind}, got {value.dtype}")
        if bool((value < 0).any()):
            raise BadPacket(f"{name} must not be negative")
        if name != "log_loss" and not bool(value.isfinite().all()):
            raise BadPacket(f"{name} must be finite")
        if bool(value.isnan().any()):
            raise BadPacket(f"{name} must be a number")
    samples = sums.confusion.sum()
    if bool((sums.histogram.sum((1, 2)) != samples).any()):
        raise BadPacket("histogram and confusion must be of the same samples")
    for name, bins in (("confidence", sums.confidence), ("curve", sums.curve)):
        total, rest = bins[:, 0], bins[:, 1:]
        if bool((rest > total[:, None] * (1 + 1e-6)).any()) or total.sum() != samples:
            raise BadPacket(f"{name} must be of the samples of confusion, and shares of these")
    values, known = sums.by_client.T
    if bool((values > known * (1 + 1e-6)).any()) or bool((known > clients).any()):
        raise BadPacket(f"by_client must be sums over up to {clients} clients")


def split_quality(sums: QualitySums) -> dict[str, Tensor]:
    """Sums as the tensors that a node sends."""
    tensors = {"scores": sums.scores, "clients": sums.clients}
    if sums.constant is not None:
        tensors |= dict(zip(OF_CONSTANT, sums.constant, strict=True))
    return tensors | ({} if sums.probabilities is None else sums.probabilities._asdict())


def read_probabilities(tensors: dict[str, Tensor]) -> ProbabilitySums:
    """The sums of probabilities among what a node sent."""
    return ProbabilitySums(*(tensors[name] for name in ProbabilitySums._fields))


def join_quality(tensors: dict[str, Tensor]) -> QualitySums:
    """The sums that a node sent."""
    constant: Any = None
    if OF_CONSTANT[0] in tensors:
        constant = SummedScores(*(tensors[name] for name in OF_CONSTANT))
    found = read_probabilities(tensors) if "histogram" in tensors else None
    return QualitySums(tensors["scores"], tensors["clients"], constant, found)
