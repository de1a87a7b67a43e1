"""Scoring: models on the data of clients, wherever these are.

`SimulatedScorer` has the data on this machine; `flower/evaluation.py` asks the clients of a
network, which score themselves and send sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.cohort import Cohort
from coterie.core.population import Population, RoundClients
from coterie.core.task import MetricSums, Task, TaskMetrics
from coterie.data.federation import Federation
from coterie.engine.simulator import Simulator
from coterie.evaluation.client_map import MOST_MODELS, compares_losses, losses_or_gradients
from coterie.evaluation.personal import MOST_NUMBERS, FineTuning, TunedScores
from coterie.evaluation.quality import QualitySums, measure_quality
from coterie.evaluation.sums import SummedScores, sum_by_cluster
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import dense, select_rows, to_device


class SampleClusters(NamedTuple):
    """The clusters of samples, where samples are clustered; client after client."""

    found: Tensor  # [N] the cluster of every sample
    true: Tensor  # [N] its label
    sizes: Tensor  # [a] how many samples each client has
    losses: Tensor | None = None  # [k] their mean loss in each cluster, NaN in one without samples


class ClusterSummary(NamedTuple):
    """What is told of clusters where nothing is told of single clients."""

    sizes: Tensor  # [k] clients
    means: dict[str, Tensor]  # metric -> [k] its mean over them


class Evaluation(NamedTuple):
    """Which model serves which client, and how well."""

    serving: Serving  # of the clients that were scored
    summary: TaskMetrics
    samples: SampleClusters | None = None
    groups: ClusterSummary | None = None  # where single clients are withheld
    validation: Evaluation | None = None  # of the clients that train, on what they hold out
    attackers: Evaluation | None = None  # of those who attack; all else is of the honest ones
    total: Tensor | None = None  # [s] the task's sums over all of them; None: nobody was scored

    @property
    def everybody(self) -> Serving:
        """Which model serves which client, of those who attack as well."""
        if self.attackers is None:
            return self.serving
        mine, theirs = self.serving, self.attackers.serving
        ids, order = torch.cat([mine.ids, theirs.ids]).sort()
        mixture = None
        if mine.mixture is not None and theirs.mixture is not None:
            mixture = torch.cat([mine.mixture, theirs.mixture])[order]
        cluster = torch.cat([mine.cluster, theirs.cluster])[order]
        return mine._replace(ids=ids, cluster=cluster, mixture=mixture)

    @property
    def scored(self) -> int:
        """How many clients were scored; metrics are those of these clients."""
        return len(self.serving.ids)


class Scorer(Protocol):
    """Scores models on a part of the clients' data: `train`, `validation` or `test`."""

    @property
    def tested(self) -> bool:
        """Whether there is a test part."""

    @property
    def validated(self) -> bool:
        """Whether there is a validation part."""

    @property
    def task(self) -> Task:
        """What models are scored at."""

    def clients(self, part: str) -> RoundClients:
        """All clients of a part, to choose models by its data."""

    def sizes(self, part: str) -> Tensor:
        """How many samples of a part each client has, [m]."""

    def score(
        self, serving: Serving, part: str, samples_of: Tensor | None = None, with_map: bool = False
    ) -> Evaluation:
        """Score each served client on its own samples, or on those of the clients `samples_of`.

        Clients without samples in that part are left out. Where an answer takes a message,
        `with_map` asks for the `map_rows` in the same one.
        """

    def score_tuned(
        self, serving: Serving, tuning: FineTuning, part: str, samples_of: Tensor | None = None
    ) -> tuple[Tensor, TunedScores]:
        """Who was scored [a], and how, before and after they fine-tuned on their training part."""

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
        """What the served models are worth in full, beside the output `constant` [c].

        With `tuning`, clients fine-tune them first; those of `tuned` [a], or all of them, use what
        becomes of them. None where nobody answers.
        """

    def own_models(self, serving: Serving) -> Tensor:
        """Every model in use: [k, d], or one for each client that adapts its model, if known."""

    def sample_labels(self, serving: Serving) -> Tensor | None:
        """The cluster of every training sample, [N], -1 unknown; None if clients are clustered."""

    def sample_losses(self, serving: Serving, rows: Tensor) -> Tensor | None:
        """The losses [r, k] of the training samples `rows` [r], increasing, under all models.

        None where samples and what is known of single ones stay with the clients.
        """

    def map_rows(self, serving: Serving) -> tuple[Tensor, Tensor]:
        """Ids of training clients, increasing, and the losses or gradients that place them."""


class SimulatedScorer:
    """Scores on the data of this machine.

    `train` has the samples that models are judged on as those of training. `simulators` are those
    of the other parts, by name; any that is not given is made. Where client steps run elsewhere,
    `population` is who trains.
    """

    def __init__(
        self,
        federation: Federation,
        train: Simulator,
        simulators: Mapping[str, Simulator] | None = None,
        *,
        population: Population | None = None,
    ) -> None:
        self.population = population or train
        self.train = train
        self.simulators = {"train": train, **(simulators or {})}
        for part, samples in federation.parts.items():
            if part not in self.simulators:
                first = first_id(federation, part)
                self.simulators[part] = train.with_samples(samples, first)

    @property
    def tested(self) -> bool:
        return "test" in self.simulators

    @property
    def validated(self) -> bool:
        return "validation" in self.simulators

    @property
    def task(self) -> Task:
        return self.train.task

    def clients(self, part: str) -> RoundClients:
        return (self.population if part == "train" else self._simulator(part)).at("serve")

    def sizes(self, part: str) -> Tensor:
        return self._simulator(part).samples.sizes

    def score(
        self, serving: Serving, part: str, samples_of: Tensor | None = None, with_map: bool = False
    ) -> Evaluation:
        if serving.choose is not None:
            return withhold_clients(self.score(self._choose(serving), part, samples_of), serving)
        on = self._simulator(part)
        samples_of = serving.ids if samples_of is None else samples_of
        sizes = on.samples.sizes[on.locate(samples_of)]
        if bool((sizes == 0).any()):
            serving, samples_of, sizes = (
                serving.for_clients(sizes > 0),
                samples_of[sizes > 0],
                sizes[sizes > 0],
            )
        ids = serving.ids
        sums = MetricSums(on.task, len(ids))
        if not len(ids):
            nothing = torch.arange(0)
            samples = None if serving.label is None else SampleClusters(nothing, nothing, nothing)
            return Evaluation(serving, sums.finish(), samples)
        labels: dict[int, tuple[Tensor, Tensor]] = {}  # place -> found and true ones
        by_cluster = torch.zeros(())  # [k, s] sums over the samples of each cluster
        for chunk in on.chunking.cut(sizes):
            cohort = on.cohort(samples_of[chunk], 0, (on.seed, "score"))
            if serving.mixture is not None:
                own = serving.mixture[chunk]
                scores = on.on_device(cohort.score_mixture, serving.models, own)
            elif serving.label is None:
                scores = on.on_device(cohort.score, self._models(serving, ids[chunk]))
            else:
                label = on.on_device(serving.label, cohort, models=serving.models)
                each = to_device(on.on_device(scores_by_label, cohort, serving.models, label), CPU)
                scores, by_cluster = each.sum(0), by_cluster + each.sum(1)
                for place, row, (_, y) in zip(chunk.tolist(), label, cohort, strict=True):
                    labels[place] = to_device(row[: len(y)], CPU), to_device(y, CPU)
            sums.add(chunk, to_device(scores, CPU))
        if serving.label is None:
            return Evaluation(serving, sums.finish(), total=sums.total)
        found, true = zip(*(labels[place] for place in range(len(ids))), strict=True)
        samples = SampleClusters(torch.cat(found), torch.cat(true), sizes)
        empty = torch.bincount(samples.found, minlength=len(serving.models)) == 0
        losses = on.task.metrics(by_cluster)["loss"].masked_fill(empty, torch.nan)
        return Evaluation(serving, sums.finish(), samples._replace(losses=losses), total=sums.total)

    def score_tuned(
        self, serving: Serving, tuning: FineTuning, part: str, samples_of: Tensor | None = None
    ) -> tuple[Tensor, TunedScores]:
        on, train, ids = self._simulator(part), self.train, serving.ids
        samples_of = ids if samples_of is None else samples_of
        chunks = list(on.chunking.cut(on.samples.sizes[on.locate(samples_of)]))
        # Where clients adapt models, the clusters are not what a serving says.
        held = serving.adapt is None and len(ids) * serving.models.shape[1] <= MOST_NUMBERS
        found = []
        for chunk in chunks:
            own = train.cohort(ids[chunk], 0, (train.seed, "adapt"))
            scored = on.cohort(samples_of[chunk], 0, (on.seed, "score"))
            models = select_rows(serving.models, serving.cluster[chunk])
            parts = on.on_device(
                tuning.score, own, scored, models, adapt=serving.adapt, with_models=held
            )
            found.append([to_device(each, CPU) for each in parts if each is not None])
        if not found:
            return ids, TunedScores(*[torch.zeros(0, 1)] * 3)
        order = torch.cat(chunks).argsort()
        columns = zip(*found, strict=True)
        return ids, TunedScores(*(torch.cat(column)[order] for column in columns))

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
        on, whole, withheld = self._simulator(part), serving, serving.choose is not None
        samples_of = serving.ids if samples_of is None else samples_of
        if withheld:
            whole = self._choose(serving)
        known = on.samples.sizes[on.locate(samples_of)] > 0
        whole, samples_of = whole.for_clients(known), samples_of[known]
        tuned = None if tuned is None else tuned[known]
        if not len(samples_of):
            return None
        grouped = not withheld and whole.adapt is None and 1 < len(whole.models) <= MOST_MODELS
        k = len(whole.models) if grouped else 1
        cluster = whole.cluster if grouped else torch.zeros_like(whole.cluster)

        def score(cohort: Cohort, places: Tensor) -> Tensor:
            scores: Tensor
            if whole.mixture is not None:
                scores = on.on_device(cohort.score_mixture, whole.models, whole.mixture[places])
                return scores
            models = self._models(whole, whole.ids[places])
            if tuning is not None:
                own = self.train.cohort(whole.ids[places], 0, (self.train.seed, "adapt"))
                after = self.train.on_device(tuning.tune, own, model=models)
                models = use_tuned(models, after, None if tuned is None else tuned[places])
            scores = on.on_device(cohort.score, models)
            return scores

        return measure_quality(on, samples_of, cluster, k, score, constant=constant)

    def own_models(self, serving: Serving) -> Tensor:
        if serving.adapt is None:
            return serving.models
        rows = torch.empty(len(serving.ids), serving.models.shape[1], dtype=serving.models.dtype)
        for ids in self.train.chunks(serving.ids):
            rows[torch.searchsorted(serving.ids, ids)] = to_device(self._models(serving, ids), CPU)
        return rows

    def sample_labels(self, serving: Serving) -> Tensor | None:
        samples = None if serving.label is None else self.score(serving, "train").samples
        if samples is None:
            return None
        sizes = self.sizes("train")
        served = torch.isin(torch.arange(len(sizes)), serving.ids).repeat_interleave(sizes)
        labels = torch.full((len(served),), -1)
        labels[served] = samples.found
        return labels

    def sample_losses(self, serving: Serving, rows: Tensor) -> Tensor | None:
        on, offsets = self.train, self.train.samples.offsets
        owner = torch.searchsorted(offsets, rows, right=True) - 1  # [r]
        losses = torch.empty(len(rows), len(serving.models), dtype=torch.float64)
        for ids in on.chunks(owner.unique()):
            cohort = on.cohort(ids, 0, (on.seed, "map"))
            mine = [owner == i for i in ids.tolist()]
            chosen = torch.zeros(cohort.mask.shape, dtype=torch.bool)
            for row, some, begin in zip(chosen, mine, offsets[ids].tolist(), strict=True):
                row[rows[some] - begin] = True
            found = to_device(on.on_device(losses_among, cohort, chosen, serving.models), CPU)
            for some, each in zip(mine, found, strict=True):
                losses[some] = each[: int(some.sum())].double()
        return losses

    def map_rows(self, serving: Serving) -> tuple[Tensor, Tensor]:
        by_loss, seed = compares_losses(serving), self.train.seed
        chunks, order = [], []
        for ids in self.train.chunks(serving.ids):
            cohort = self.train.cohort(ids, 0, (seed, "map"))
            rows = self.train.on_device(losses_or_gradients, cohort, serving.models, seed, by_loss)
            chunks.append(to_device(rows, CPU))
            order.append(ids)
        if not chunks:
            return serving.ids, torch.zeros(0, 0)
        return serving.ids, torch.cat(chunks)[torch.cat(order).argsort()]

    def _simulator(self, part: str) -> Simulator:
        assert part in self.simulators, f"there is no {part} part"
        return self.simulators[part]

    def _choose(self, serving: Serving) -> Serving:
        """The same when clients have chosen, which nobody else is to know."""
        by, cluster = self._simulator(serving.chosen_by), serving.cluster.clone()
        assert serving.choose is not None
        for ids in by.chunks(serving.ids):
            chosen = by.on_device(serving.choose, by.cohort(ids, 0, (by.seed, "choose")))
            cluster[torch.searchsorted(serving.ids, ids)] = to_device(chosen.cluster, CPU)
        return serving._replace(cluster=cluster, choose=None)

    def _models(self, serving: Serving, ids: Tensor) -> Tensor:
        """The models [c, d] that clients `ids` use."""
        models = select_rows(serving.models, serving.cluster[torch.searchsorted(serving.ids, ids)])
        if serving.adapt is None:
            return models
        cohort = self.train.cohort(ids, 0, (self.train.seed, "adapt"))
        adapted: Tensor = self.train.on_device(serving.adapt, cohort, model=models)
        return adapted


def withhold_clients(evaluation: Evaluation, serving: Serving) -> Evaluation:
    """An evaluation of which only sums over clients are told."""
    # By the F1 of clients of a known size, as `f1_micro` is, more would be told than sums.
    told = {n: v for n, v in evaluation.summary.metrics.items() if n != "f1_micro"}
    groups = cluster_summary(evaluation)
    return Evaluation(serving, TaskMetrics(told, {}), groups=groups, total=evaluation.total)


def cluster_summary(evaluation: Evaluation) -> ClusterSummary:
    """The clients of every cluster, and the mean over them of each metric of single clients."""
    cluster, k = evaluation.serving.cluster, len(evaluation.serving.models)
    sizes = torch.bincount(cluster, minlength=k)
    sums = {n: sum_by_cluster(v, cluster, k) for n, v in evaluation.summary.clients.items()}
    return ClusterSummary(sizes, {n: each / sizes.clamp_min(1) for n, each in sums.items()})


def summed_evaluation(task: Task, serving: Serving, sums: SummedScores) -> Evaluation:
    """The evaluation of which only sums over clients are known."""
    names, sizes = list(task.metrics(sums.total[None])), sums.clients
    by_cluster = dict(zip(names, sums.metrics / sums.known.clamp_min(1), strict=True))
    told = TaskMetrics(sums.summary(task), {})
    return Evaluation(serving, told, groups=ClusterSummary(sizes, by_cluster), total=sums.total)


def use_tuned(before: Tensor, after: Tensor, tuned: Tensor | None) -> Tensor:
    """The models [m, d] in use: those of clients `tuned` [m] after fine-tuning; None: of all."""
    if tuned is None:
        return after
    return torch.where(tuned.to(after.device)[:, None], dense(after), dense(before))


def scores_by_label(cohort: Cohort, models: Tensor, label: Tensor) -> Tensor:
    """The task's sums [k, m, s]: under model j, of each client's samples with label [m, n] j."""
    scores = {
        j: cohort.among(label == j).score(models[j].expand(len(cohort), -1))
        for j in label.unique().tolist()
    }
    nothing = torch.zeros_like(next(iter(scores.values())))
    return torch.stack([scores.get(j, nothing) for j in range(len(models))])


def losses_among(cohort: Cohort, chosen: Tensor, models: Tensor) -> Tensor:
    """The losses [m, b, k] of those samples that `chosen` [m, n] names, padded behind."""
    return cohort.among(chosen).losses(models)


def first_id(federation: Federation, part: str) -> int:
    """The id of the first client of a part; unseen clients are numbered after the others."""
    return len(federation) if federation.unseen and part == "test" else 0
