"""The quality of models in full: what the last evaluation of a run adds to that of a round.

A round is judged by what clients' scores add up to. Here the probabilities of classes are looked
at, every group of clients is judged alone, and the best constant prediction is scored on the same
samples: the shares that the classes, or the mean that the targets have among the samples trained
on. Who has seen that a model is better than a constant knows that it has learnt something.

The same is done where clients are simulated and on the nodes of a network, which send sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.task import Task, summary_metrics
from coterie.engine.simulator import Simulator
from coterie.evaluation.probabilities import (
    ProbabilitySums,
    Ranks,
    constant_sums,
    probability_metrics,
    rank_groups,
    rank_histogram,
    ranked_classes,
    sum_probabilities,
)
from coterie.evaluation.sums import SummedScores, sum_scores
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import to_device

# Numbers that are kept to rank samples exactly; of more, AUC is that of a histogram.
MOST_RANKED = 2**25


class QualitySums(NamedTuple):
    """What there is to know of models on the samples of some clients, as sums over these."""

    scores: Tensor  # [k, s] the task's sums, by cluster
    clients: Tensor  # [k] how many are in each
    constant: SummedScores | None = None  # the same of the constant prediction, of all in one
    probabilities: ProbabilitySums | None = None  # None where no class is predicted
    ranks: Ranks | None = None  # exact: of all samples, then of those of each cluster


class Quality(NamedTuple):
    """The quality of models on a part of the data."""

    metrics: dict[str, float]  # of probabilities: those that the scores of a round do not give
    constant: dict[str, float]  # the metrics of the best constant prediction; empty: not known
    groups: list[dict[str, Any]]  # of each cluster: clients, samples, metrics; of one: none
    details: dict[str, Any]  # confusion and calibration, as result files have them


class ScoredTask:
    """A task that scores a constant output as well, and keeps what is predicted of classes."""

    def __init__(self, task: Task, constant: Tensor | None) -> None:
        self._task, self._constant = task, constant
        self.found: list[Any] = []  # what was predicted of classes, one call after another

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def score(self, output: Tensor, y: Any, mask: Tensor) -> Tensor:
        """The task's sums [m, s], and behind them those of the constant, if there is one."""
        if hasattr(self._task, "class_logits"):
            self.found.append(self._task.class_logits(output, y, mask))
        scores = self._task.score(output, y, mask)
        if self._constant is None:
            return scores
        constant = self._constant.to(output).expand_as(output)
        return torch.cat([scores, self._task.score(constant, y, mask)], 1)


def measure_quality(
    on: Simulator,
    ids: Tensor,
    cluster: Tensor,
    k: int,
    score: Callable[[Cohort, Tensor], Tensor],
    *,
    constant: Tensor | None,
    exact: bool = True,
) -> QualitySums:
    """What models are worth on the samples of clients `ids` [m] of `on`, in `cluster` [m] of k.

    `score(cohort, places)` scores the clients at `places` among these. `constant` is the output [c]
    to compare with, `exact` says whether predictions are kept to rank samples by them.
    """
    task = ScoredTask(on.task, constant)
    scored, sizes = on.with_task(task), on.samples.sizes[on.locate(ids)]
    parts: list[QualitySums] = []
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    numbers = 0
    for chunk in on.chunking.cut(sizes):
        task.found.clear()
        cohort = scored.cohort(ids[chunk], 0, (on.seed, "score"))
        scores = to_device(score(cohort, chunk), CPU)
        found, own = None, cluster[chunk]
        if task.found:
            logits, labels, each = (
                to_device(torch.cat(part), CPU) for part in zip(*task.found, strict=True)
            )
            # A model that has diverged gives no class any probability.
            log_p = logits.double().log_softmax(1).nan_to_num(nan=-torch.inf)
            p = log_p.exp()
            found = sum_probabilities(p, log_p, labels, each)
            numbers += p.numel()
            if exact and numbers <= MOST_RANKED:
                kept.append((*ranked_classes(p, labels), own.repeat_interleave(each)))
        parts.append(chunk_sums(on.task, scores, own, k, found, constant is not None))
    total = add_quality(parts)
    if not kept or numbers > MOST_RANKED:
        return total
    p, positive, group = (torch.cat(each) for each in zip(*kept, strict=True))
    whole = rank_groups(p, positive, torch.zeros_like(group), 1)
    if k == 1:
        return total._replace(ranks=whole)
    groups = rank_groups(p, positive, group, k)
    return total._replace(ranks=Ranks(*map(torch.cat, zip(whole, groups, strict=True))))


def chunk_sums(
    task: Task,
    scores: Tensor,
    cluster: Tensor,
    k: int,
    found: ProbabilitySums | None,
    with_constant: bool,
) -> QualitySums:
    """The sums of some clients with scores [m, s], or [m, 2s] with those of the constant."""
    own, constant = scores, None
    if with_constant:
        own, beside = scores.chunk(2, dim=1)
        constant = sum_scores(task, beside, torch.zeros_like(cluster), 1)
    total = own.new_zeros(k, own.shape[1]).index_add(0, cluster, own)
    return QualitySums(total, torch.bincount(cluster, minlength=k), constant, found)


def add_quality(parts: list[QualitySums]) -> QualitySums:
    """The sums of all clients, from those of some each; what was exact is not known of all."""
    total = parts[0]._replace(ranks=None)
    for part in parts[1:]:
        constant, found = total.constant, total.probabilities
        if constant is not None and part.constant is not None:
            constant = SummedScores(*map(torch.add, constant, part.constant))
        if found is not None and part.probabilities is not None:
            found = found.plus(part.probabilities)
        total = QualitySums(
            total.scores + part.scores, total.clients + part.clients, constant, found
        )
    return total


def read_quality(task: Task, sums: QualitySums, constant: Tensor | None) -> Quality:
    """The quality that sums tell of; `constant` is the output that is compared with."""
    metrics: dict[str, float] = {}
    baseline: dict[str, float] = {}
    details: dict[str, Any] = {}
    if sums.constant is not None:
        baseline = sums.constant.summary(task)
    found, ranks = sums.probabilities, sums.ranks
    if found is not None:
        binned, error = rank_histogram(found)
        metrics = probability_metrics(found, ranks or binned)
        details = probability_details(found, ranks is None, error)
        if constant is not None:
            beside = constant_sums(found, constant)
            baseline |= probability_metrics(beside, rank_histogram(beside)[0])
    return Quality(metrics, baseline, quality_of_groups(task, sums), details)


def quality_metrics(quality: Mapping[str, Quality]) -> dict[str, float]:
    """The metrics of qualities by what their names begin with, under their whole names."""
    return {f"{lead}{n}": v for lead, each in quality.items() for n, v in each.metrics.items()}


def quality_of_groups(task: Task, sums: QualitySums) -> list[dict[str, Any]]:
    """Each cluster that has clients: how many, their samples, and its own metrics."""
    k = len(sums.clients)
    if k < 2:
        return []
    rows = []
    for j in torch.nonzero(sums.clients).flatten().tolist():
        own = sums.scores[j]
        metrics = summary_metrics(task, own, {})
        if sums.ranks is not None:
            each = {n: float(v[1 + j]) for n, v in sums.ranks._asdict().items()}
            metrics |= {name: value for name, value in each.items() if value == value}
        counts = getattr(task, "sample_counts", lambda scores: scores[:, 0])
        samples = int(counts(own[None])[0])
        rows.append(
            {"cluster": j, "clients": int(sums.clients[j]), "samples": samples, "metrics": metrics}
        )
    return rows


def probability_details(sums: ProbabilitySums, binned: bool, error: Ranks) -> dict[str, Any]:
    """Confusion and calibration as result files have them, and what is to be said of AUC."""
    count, probability, true = sums.curve.T
    used = count > 0
    columns = {"samples": count, "predicted": probability / count, "true": true / count}
    details: dict[str, Any] = {
        "confusion": sums.confusion.tolist(),
        "calibration": {name: each[used].tolist() for name, each in columns.items()},
        "clients_with_auc": int(sums.by_client[0, 1]),
        "binned": binned,
    }
    if binned:
        names = ("auc_error", "average_precision_error")
        details |= {n: float(each[0]) for n, each in zip(names, error, strict=True)}
    return details
