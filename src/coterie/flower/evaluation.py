"""Scoring over a network: every client scores itself on its own data, and sends sums.

Where the server is not told which client is in which cluster, its node adds them up first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.clients import merge_answers
from coterie.core.population import RoundClients
from coterie.core.task import MAY_MISS, MetricSums, Task, task_metrics
from coterie.evaluation.client_map import MOST_MODELS, compares_losses
from coterie.evaluation.personal import FineTuning, TunedScores
from coterie.evaluation.quality import QualitySums, add_quality
from coterie.evaluation.scoring import (
    Evaluation,
    SampleClusters,
    summed_evaluation,
    withhold_clients,
)
from coterie.evaluation.sums import SummedScores
from coterie.flower.clients import Network
from coterie.flower.quality import QualityExchange
from coterie.flower.replies import NodeReply, check_fields, disagreement
from coterie.flower.step_exchange import encode_step, without
from coterie.flower.wire import BadPacket, Packet

SHARES = ("accuracy", "f1")  # metrics from 0 to 1 that every client with samples has
# What nodes send that a task makes metrics of, and what must be finite where that of most is.
OF_GROUPS = ("group scores", "total", "constant_total")  # of which some may be of nobody
SUMS = ("scores", "untuned", "total", "constant_total")
FINITE = (*SUMS, "metrics", "constant_metrics", "log_loss", "moved")
LARGEST = 1e30  # a sum; squares of larger ones are infinite
MAX_CLASSES = 100  # true clusters of samples, where no schema says how many there are


class NetworkScorer:
    """Scores models on data that stay with the clients.

    Models that clients make for themselves, and the clusters of their samples, do not leave them.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        # Asked once: nodes come and go, and metrics keep their names.
        self.tested = all(node.tested for node in network.roster.nodes.values())
        self.validated = bool(network.validation_sizes.any())
        self._map: tuple[Tensor, Tensor] | None = None  # ids of clients, and what places them

    @property
    def task(self) -> Task:
        return self.network.task

    def clients(self, part: str) -> RoundClients:
        return self.network.at("serve")

    def sizes(self, part: str) -> Tensor:
        return self.network.validation_sizes if part == "validation" else self.network.sizes

    def score(
        self, serving: Serving, part: str, samples_of: Tensor | None = None, with_map: bool = False
    ) -> Evaluation:
        """Each client's sums on a part of its data; those that do not answer are left out."""
        assert samples_of is None, "a client of a network has only its own samples"
        if part == "validation":
            serving = serving.for_clients(self.sizes(part)[serving.ids] > 0)
        if serving.choose is not None:
            return self._score_sums(serving, part)
        ids, answer = self._ask(serving, part, with_map)
        answered = torch.isin(serving.ids, ids)
        serving = serving.for_clients(answered)
        if answer is None:
            nothing = torch.arange(0)
            clusters = None if serving.label is None else SampleClusters(nothing, nothing, nothing)
            return Evaluation(serving, MetricSums(self.network.task, 0).finish(), clusters)
        quality = task_metrics(self.network.task, answer.scores)
        total = answer.scores.sum(0)
        if serving.label is None:
            return Evaluation(serving, quality, total=total)
        # As many samples of each kind as there are, client after client.
        counts = answer.counts.flatten(1)
        pairs = counts.nonzero()
        repeats, classes = counts[pairs[:, 0], pairs[:, 1]], answer.counts.shape[2]
        kinds = pairs[:, 1].repeat_interleave(repeats)
        clusters = SampleClusters(kinds // classes, kinds % classes, counts.sum(1))
        return Evaluation(serving, quality, clusters, total=total)

    def score_tuned(
        self, serving: Serving, tuning: FineTuning, part: str, samples_of: Tensor | None = None
    ) -> tuple[Tensor, TunedScores]:
        """Each client's sums, and how far its model moved; those that do not answer are left out.

        How models are fine-tuned nodes know by the settings of the app.
        """
        assert samples_of is None, "a client of a network has only its own samples"
        replies = []
        if len(serving.ids):
            replies = self._replies(serving, ScoreExchange(serving, part, tuned=True))
        ids, answer = merge_answers(*((each.ids, each.upload) for each in replies))
        if answer is None:
            return ids, TunedScores(*[torch.zeros(0, 1)] * 3)
        return ids, TunedScores(answer.untuned, answer.scores, answer.moved)

    def measure(
        self,
        serving: Serving,
        part: str,
        samples_of: Tensor | None = None,
        *,
        constant: Tensor | None = None,
        tuning: FineTuning | None = None,
        tuned: Tensor | None = None,
    ) -> QualitySums | None:
        """Sums over the clients of every node; None if none answers."""
        assert samples_of is None, "a client of a network has only its own samples"
        task, k, models = self.network.task, len(serving.models), ScoreExchange(serving, part)
        contents = models.contents
        if serving.choose is not None:
            contents = SumExchange(serving, part, task).contents
        alone = serving.choose is not None or serving.adapt is not None
        exchange = QualityExchange(
            contents,
            task,
            serving,
            constant,
            tuned,
            tune=tuning is not None,
            groups=1 if alone or not 1 < k <= MOST_MODELS else k,
        )
        replies = self._replies(serving, exchange) if len(serving.ids) else []
        sums = add_quality([each.upload.sums() for each in replies]) if replies else None
        return sums if sums is not None and bool(sums.clients.any()) else None

    def own_models(self, serving: Serving) -> Tensor:
        return serving.models

    def sample_labels(self, serving: Serving) -> Tensor | None:
        return None

    def sample_losses(self, serving: Serving, rows: Tensor) -> Tensor | None:
        return None

    def map_rows(self, serving: Serving) -> tuple[Tensor, Tensor]:
        """What came with the last evaluation; asked for only where there was none."""
        if self._map is None:  # a run that was complete is resumed
            self._ask(serving, "train", with_map=True)
        return (torch.arange(0), torch.zeros(0, 0)) if self._map is None else self._map

    def _ask(self, serving: Serving, part: str, with_map: bool) -> tuple[Tensor, Any]:
        """Who was scored [a], and what they sent; None if nobody was."""
        if not len(serving.ids):
            return serving.ids, None
        drawn = ("losses" if compares_losses(serving) else "gradients") if with_map else ""
        schema = self.network.app.schema
        classes = max(len(schema.classes), 1) if schema else MAX_CLASSES
        scores = ScoreExchange(serving, part, drawn, classes)
        replies = self._replies(serving, scores)
        ids, answer = merge_answers(*((each.ids, each.upload) for each in replies))
        if with_map and answer is not None:
            self._map = ids, answer.map
        return ids, answer

    def _score_sums(self, serving: Serving, part: str) -> Evaluation:
        """Sums over the clients of every node, who choose their models themselves."""
        task, replies = self.network.task, []
        if len(serving.ids):
            replies = self._replies(serving, SumExchange(serving, part, task))
        ids, sums = torch.arange(0), SummedScores(*[torch.zeros(())] * 4)
        for each in replies:
            ids = torch.cat([ids, each.ids])
            sums = SummedScores(
                *(one + other[0] for one, other in zip(sums, each.upload, strict=True))
            )
        serving = serving.for_clients(torch.isin(serving.ids, ids))
        if not replies:
            return withhold_clients(Evaluation(serving, MetricSums(task, 0).finish()), serving)
        return summed_evaluation(task, serving, sums)

    def _replies(
        self, serving: Serving, exchange: ScoreExchange | SumExchange | QualityExchange
    ) -> list[NodeReply]:
        """What nodes reply to an exchange; those that differ from most are refused."""
        task, most = self.network.task, self.network.app.network.most_samples

        def read(ids: Tensor, reply: Packet) -> NodeReply:
            found = exchange.read(ids, reply)
            of_all = not isinstance(exchange, ScoreExchange)
            for name, value in found.upload._asdict().items():
                if name in SUMS:
                    rows = value.flatten(0, -2) if value.dim() > 2 else value
                    which = f"group {name}" if value.dim() > 2 else name
                    check_scores(task, which, rows, most * (len(ids) if of_all else 1))
                elif name in ("counts", "confusion"):
                    check_counts(name, value, most * (len(ids) if name == "confusion" else 1))
            return found

        replies = self.network.ask("score", serving.ids, exchange.contents, read)
        refused: dict[int, str] = {}
        for place, reason in disagreement("score", replies).items():
            refused |= dict.fromkeys(replies[place].ids.tolist(), reason)
        replies = without(replies, refused)
        endless = unlike_most(replies)
        self.network.report_refused(refused | endless)
        return without(replies, endless)


def unlike_most(replies: list[NodeReply]) -> dict[int, str]:
    """Clients whose sums are not finite where those of most clients are, and why they are refused.

    A model that has diverged has no finite loss anywhere; one node cannot take it from all others.
    """
    fine = [clients_with_finite_sums(reply) for reply in replies]
    asked = sum(len(reply.ids) for reply in replies)
    if 2 * sum(int(rows.sum()) for rows in fine) <= asked:
        return {}
    reason = "its sums are not finite, unlike those of most clients"
    odd = [reply.ids[~rows] for reply, rows in zip(replies, fine, strict=True)]
    return dict.fromkeys((i for ids in odd for i in ids.tolist()), reason)


def clients_with_finite_sums(reply: NodeReply) -> Tensor:
    """For which clients of a reply all sums are finite; of sums over a node it is all or none."""
    fine = torch.ones(len(reply.ids), dtype=torch.bool)
    for name, value in reply.upload._asdict().items():
        if name in FINITE:
            rows = (value.abs() <= LARGEST).flatten(1).all(1)
            fine &= rows if len(rows) == len(fine) else rows.all()
    return fine


def check_counts(name: str, counts: Tensor, most: int) -> None:
    """Refuse counts of samples of which there are more than `most`."""
    if bool(((counts < 0) | (counts > most)).any()) or float(counts.double().sum()) > most:
        raise BadPacket(f"{name} must be of 0 to {most:,} samples (`most_samples`)")


def check_scores(task: Task, name: str, scores: Tensor, most: int) -> None:
    """Refuse sums of clients [a, s] that make no metrics, or are of more samples than `most`."""
    if scores.dim() != 2 or not scores.is_floating_point() or bool(scores.isnan().any()):
        raise BadPacket(f"{name} must be rows of numbers, one for each client")
    counts = task.sample_counts(scores) if hasattr(task, "sample_counts") else scores.new_ones(1)
    if not bool(((counts >= 0) & (counts <= most)).all()):
        raise BadPacket(f"{name} must be of 0 to {most:,} samples each (`most_samples`)")
    for metric, value in task.metrics(scores).items():
        outside = (value < 0) | (value > 1 + 1e-6)
        missing = value.isnan() & ((counts > 0) | (name not in OF_GROUPS))
        if metric in SHARES and bool(outside.any()):
            raise BadPacket(f"{name} makes the {metric} lie outside 0 to 1")
        if metric not in MAY_MISS and bool(missing.any()):
            raise BadPacket(f"{name} makes no {metric}")


def check_metric_sums(names: list[str], sums: SummedScores) -> None:
    """Refuse sums of metrics over clients that are no numbers, or more than so many can have."""
    for name, row, known in zip(names, sums.metrics, sums.known, strict=True):
        if bool(row.isnan().any()):
            raise BadPacket(f"the sum of {name} must be a number")
        if name in SHARES and bool(((row < 0) | (row > known * (1 + 1e-6))).any()):
            raise BadPacket(f"the sum of {name} must be from 0 to the clients that it is of")


class ScoreExchange:
    """What crosses when clients score models: messages to nodes, and their replies.

    part     of the clients' data that they score on
    drawn    what places clients on a map: losses, gradients, or nothing
    classes  how many true clusters of samples there may be
    tuned    whether clients fine-tune the models first
    """

    def __init__(
        self,
        serving: Serving,
        part: str,
        drawn: str = "",
        classes: int = MAX_CLASSES,
        *,
        tuned: bool = False,
    ) -> None:
        self.serving, self.part, self.drawn, self.classes = serving, part, drawn, classes
        self.tuned = tuned
        counts = ["counts"] if serving.label is not None else []
        beside = ["untuned", "moved"] if tuned else []
        self.fields = ["scores", *beside, *counts, *(["map"] if drawn else [])]
        self.kind: Any = NamedTuple("Scored", [(n, Tensor) for n in self.fields])  # type: ignore[misc]

    def contents(self, ids: Tensor) -> Packet:
        """What the message to the node of clients `ids` says."""
        serving = self.serving
        place = torch.searchsorted(serving.ids, ids)
        cluster, models = serving.cluster[place], serving.models
        mixture = {} if serving.mixture is None else {"mixture": serving.mixture[place]}
        if serving.label is None and not mixture and self.drawn != "losses":
            used, cluster = cluster.unique(return_inverse=True)
            models = models[used]
        step = serving.adapt or serving.label
        header, tensors = ({"plain": {}}, {}) if step is None else encode_step(step, {}, ids)
        use = "" if step is None else ("adapt" if serving.adapt else "label")
        header |= {"part": self.part, "map": self.drawn, "use": use, "classes": self.classes}
        header["tune"] = self.tuned
        tensors |= {"models": models, "cluster": cluster}
        tensors |= mixture
        return Packet(header, tensors)

    def read(self, ids: Tensor, reply: Packet) -> NodeReply:
        """The reply of the node of clients `ids`."""
        check_fields("score", self.fields, reply)
        for name, value in reply.tensors.items():
            if name in ("moved", "map") and not value.is_floating_point():
                raise BadPacket(f"{name} must be real numbers")
            if value.dim() < 2 or len(value) != len(ids):
                raise BadPacket(f"{name} must have {len(ids)} rows, one for each client")
        if self.tuned and not bool((reply.tensor("moved") >= 0).all()):
            raise BadPacket("how far a model moved must be a number that is not negative")
        if self.serving.label is not None:
            counts = reply.tensor("counts")
            shape = (len(ids), len(self.serving.models), self.classes)
            if tuple(counts.shape) != shape or counts.dtype != torch.int64 or (counts < 0).any():
                raise BadPacket(f"counts must be {list(shape)} whole numbers from 0 on")
        return NodeReply(ids, self.kind(**{name: reply.tensor(name) for name in self.fields}))


class SumExchange:
    """What crosses when clients choose their models and nodes send sums over them.

    part  of the clients' data that they score on
    """

    def __init__(self, serving: Serving, part: str, task: Task) -> None:
        self.serving, self.part, self.task = serving, part, task

    def contents(self, ids: Tensor) -> Packet:
        """What the message to the node of clients `ids` says; models are sent once."""
        serving, step = self.serving, self.serving.choose
        assert step is not None
        header, tensors = encode_step(step, {}, ids)
        same = (name for name, value in tensors.items() if torch.equal(value, serving.models))
        header["models"] = next(same, "models")
        tensors.setdefault(header["models"], serving.models)
        header |= {"part": self.part, "map": "", "use": "choose", "by": serving.chosen_by}
        header["tune"] = serving.adapt is not None  # nobody who chooses by himself adapts otherwise
        return Packet(header, tensors)

    def read(self, ids: Tensor, reply: Packet) -> NodeReply:
        """The reply of the node of clients `ids`: a row of sums."""
        check_fields("score", list(SummedScores._fields), reply)
        found = SummedScores(*(reply.tensor(name) for name in SummedScores._fields))
        k = len(self.serving.models)
        if found.clients.shape != (k,) or found.clients.dtype != torch.int64:
            raise BadPacket(f"clients must be {k} whole numbers, one for each cluster")
        if bool((found.clients < 0).any()) or int(found.clients.sum()) != len(ids):
            raise BadPacket(f"the clients of all clusters must be {len(ids)} together")
        names = self.metric_names(found.total)
        if found.metrics.shape != (len(names), k) or found.metrics.dtype != torch.float64:
            raise BadPacket(f"metrics must be {[len(names), k]}, sums of {', '.join(names)}")
        known = found.known
        if known.shape != found.metrics.shape or known.dtype != torch.int64:
            raise BadPacket(f"known must be {list(found.metrics.shape)} whole numbers")
        if bool(((known < 0) | (known > found.clients)).any()):
            raise BadPacket("known must be from 0 to the clients of each cluster")
        check_metric_sums(names, found)
        return NodeReply(ids, SummedScores(*(value[None] for value in found)))

    def metric_names(self, total: Tensor) -> list[str]:
        """The metrics that sums [s] make; sums that make none are refused."""
        try:
            return list(self.task.metrics(total[None]))
        except (RuntimeError, IndexError, ValueError) as error:
            raise BadPacket(f"total does not hold what scores add up to: {error}") from error
