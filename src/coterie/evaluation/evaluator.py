"""The evaluator: who is served which model by the protocol of a run, and all numbers about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Algorithm, Serving, serve_clients
from coterie.core.errors import DataError
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.evaluation import measures
from coterie.evaluation.client_map import MOST_MODELS, compares_losses, place_in_plane
from coterie.evaluation.client_tables import (
    client_tables,
    known_values,
    nobodys_tables,
    personal_columns,
)
from coterie.evaluation.honest import HonestClients
from coterie.evaluation.metrics import OF_SAMPLES
from coterie.evaluation.personal import (
    FineTuning,
    PersonalModels,
    check_tunable,
    choose_personal,
)
from coterie.evaluation.protocols import resolve_protocol
from coterie.evaluation.quality import Quality, read_quality
from coterie.evaluation.scoring import Evaluation, Scorer, cluster_summary


@dataclass
class Evaluator:
    """Evaluates states of one run."""

    algorithm: Algorithm[Any]
    federation: Federation
    scorer: Scorer
    protocol: str  # as the run has it; `auto` is replaced
    withheld: bool = False  # whether the server is not told which client is in which cluster
    tuning: FineTuning | None = None  # how clients fine-tune their models after the last round
    honest: HonestClients = field(default_factory=HonestClients)  # metrics are theirs

    def __post_init__(self) -> None:
        self.protocol = resolve_protocol(self.protocol, self.federation)

    def serve(self, state: tuple[Tensor, ...], part: str = "train") -> Serving:
        """Which model serves which client, chosen by a part of its data."""
        clients = self.scorer.clients(part).through(withheld=self.withheld)
        return serve_clients(self.algorithm, state, clients)._replace(chosen_by=part)

    def evaluate(self, state: tuple[Tensor, ...]) -> Evaluation:
        """Score the clients that the federation is tested on, by the run's protocol.

        Without a test part, the training part takes its place and metrics are called `train_...`.
        Where there is a validation part, the clients that train are scored on it as well; whatever
        the protocol, they have then chosen their models by what they train on.
        """
        serving, evaluation = self._judge(state)
        if not self.scorer.validated:
            return evaluation
        if serving.chosen_by != "train":
            serving = self.serve(state)
        if serving.choose is None:
            serving = self.honest.only(serving)
        return evaluation._replace(validation=self.scorer.score(serving, "validation"))

    def _judge(self, state: tuple[Tensor, ...]) -> tuple[Serving, Evaluation]:
        """Which model serves which client, and the scores of those that the run is judged by."""
        scorer = self.scorer
        if not scorer.tested:
            serving = self.serve(state)
            return serving, self._score(serving, "train")
        if not self.federation.unseen:
            serving = self.serve(state, "test" if self.protocol == "test-loss" else "train")
            return serving, self._score(serving, "test")
        serving = self.serve(state, "test")
        if serving.adapt is None:
            return serving, scorer.score(serving, "test")
        serving = self.serve(state)
        return serving, self.honest.score(
            serving, lambda some: scorer.score(some, "test", samples_of=self._peers(some))
        )

    def personalise(self, evaluation: Evaluation, serving: Serving) -> PersonalModels | None:
        """What becomes of the models that clients fine-tune; None where they do not.

        `evaluation` is that of the models before, `serving` which of these serves which client by
        its training data. Unseen clients have nothing to train on: each client that trains is then
        scored on one of its own true cluster. Those who attack are left out.
        """
        if self.tuning is None:
            return None
        scorer, part, samples_of = self.scorer, "test" if self.scorer.tested else "train", None
        if self.federation.unseen and scorer.tested:
            serving = self.honest.only(serving)
            samples_of = self._peers(serving)
        else:
            serving = evaluation.serving
        check_tunable(serving, type(self.algorithm).__name__)
        if serving.choose is not None:
            told = scorer.score(serving._replace(adapt=self.tuning.tune), part, samples_of)
            return PersonalModels(serving, told.summary)
        ids, scores = scorer.score_tuned(serving, self.tuning, part, samples_of)
        serving = serving.for_clients(torch.isin(serving.ids, ids))
        threshold = self.tuning.threshold(scores.moved)
        return choose_personal(scorer.task, serving, scores, threshold)

    def quality(
        self,
        evaluation: Evaluation,
        trained: Evaluation | None = None,
        personal: PersonalModels | None = None,
    ) -> dict[str, Quality]:
        """The quality in full, by what the names of its metrics begin with.

        It is of the models that are served, where clients fine-tune them of those they then use
        (the others are `untuned_`), and of the validation part. What `trained` was scored on gives
        the constant prediction that they are compared with.
        """
        serving, prefix = evaluation.serving, self.prefix
        constant = constant_output(self.scorer.task, trained)
        if serving.label is not None or not self.scorer.task.predicts:
            return {}
        part, samples_of = "test" if self.scorer.tested else "train", self._others(serving)
        measure = partial(self.scorer.measure, part=part, constant=constant)
        sums = {prefix: measure(serving, samples_of=samples_of)}
        if personal is not None:
            own = personal.serving
            sums[f"untuned_{prefix}"] = sums.pop(prefix)
            sums[prefix] = measure(
                own, samples_of=self._others(own), tuning=self.tuning, tuned=personal.uses_own
            )
        if evaluation.validation is not None:
            held_out = evaluation.validation.serving
            sums["validation_"] = self.scorer.measure(held_out, "validation", constant=constant)
        task = self.scorer.task
        return {lead: read_quality(task, each, constant) for lead, each in sums.items() if each}

    def _others(self, serving: Serving) -> Tensor | None:
        """The unseen clients on whom models that clients make for themselves are scored."""
        unseen = self.federation.unseen and self.scorer.tested
        makes_models = serving.adapt is not None or bool((serving.ids < len(self.federation)).all())
        return self._peers(serving) if unseen and makes_models else None

    def _score(self, serving: Serving, part: str) -> Evaluation:
        """Score clients that train."""
        score = partial(self.scorer.score, part=part, with_map=not self.withheld)
        return self.honest.score(serving, score)

    @property
    def prefix(self) -> str:
        """What the names of metrics of samples begin with."""
        return "" if self.scorer.tested else "train_"

    def personal_metrics(
        self, before: dict[str, float], personal: PersonalModels
    ) -> dict[str, float]:
        """All numbers of fine-tuned models; those `before` that are of samples are `untuned_`."""
        prefix = self.prefix
        names = [f"{prefix}{name}" for name in OF_SAMPLES]
        untuned = {f"untuned_{name}": before[name] for name in names if name in before}
        after = {f"{prefix}{name}": value for name, value in personal.summary.metrics.items()}
        return before | after | untuned | personal.metrics()

    def metrics(self, evaluation: Evaluation, cluster: Tensor) -> dict[str, float]:
        """All numbers of a state; `cluster` [m] is where the training clients are, -1 unknown."""
        prefix = self.prefix
        numbers = {prefix + name: value for name, value in evaluation.summary.metrics.items()}
        if evaluation.validation is not None:
            held_out = evaluation.validation.summary.metrics
            numbers |= {f"validation_{name}": value for name, value in held_out.items()}
        numbers |= self.honest.metrics_beside(evaluation, prefix)
        known = (cluster >= 0) & self.honest.among(torch.arange(len(cluster)))
        found, true = cluster[known], self.federation.cluster
        true = None if true is None else true[known]
        samples = evaluation.samples
        if samples is not None:
            found, true = samples.found, samples.true if self.federation.sample_clusters else None
        numbers["clusters"] = len(set(found.tolist()))
        if evaluation.groups is not None:
            numbers["clusters"] = int((evaluation.groups.sizes > 0).sum())
        if true is not None and len(found):
            numbers |= measures.clustering_scores(found, true)
            if samples is not None:
                numbers["accuracy"] = measures.matched_fraction(found, true)
        return numbers | self._distances(evaluation.serving)

    def _distances(self, serving: Serving) -> dict[str, float]:
        """How near the models are to the true parameters, where these are known."""
        models, truth = serving.models, self.federation.truth
        if truth is None or serving.adapt is not None or models.shape[1] != truth.shape[1]:
            return {}
        numbers = measures.distances_to_truth(models, truth)
        if self.federation.noise is not None and "distance" in numbers:
            enough = 0.6 * self.federation.noise  # as the IFCA paper has it
            numbers["success"] = float(numbers["distance"] <= enough)
            numbers["success_nearest"] = float(numbers["distance_nearest"] <= enough)
        return numbers

    def by_cluster(self, evaluation: Evaluation) -> dict[str, list[float | None]]:
        """Mean accuracy and loss of the clients in each cluster, None where one has no client.

        Where samples are clustered it is the mean loss of these, as far as that is known. Empty
        where clients have models of their own or more than can be told apart.
        """
        serving, k = evaluation.serving, len(evaluation.serving.models)
        if serving.adapt is not None or not 1 < k <= MOST_MODELS:
            return {}
        if evaluation.samples is not None:
            losses = evaluation.samples.losses
            return {} if losses is None else {"loss": known_values(losses)}
        sizes, means = evaluation.groups or cluster_summary(evaluation)
        return {
            name: [
                round(mean, 6) if n else None
                for mean, n in zip(values.tolist(), sizes.tolist(), strict=True)
            ]
            for name, values in means.items()
            if name in ("accuracy", "loss")
        }

    def trained(self, serving: Serving) -> Evaluation:
        """The scores of the clients on what they train on."""
        return self.scorer.score(serving, "train")

    def train_loss(self, serving: Serving) -> float:
        """The mean loss over all training samples; infinite where nobody was scored."""
        return self.scorer.score(serving, "train").summary.metrics.get("loss", math.inf)

    def map(self, serving: Serving) -> tuple[str, Tensor]:
        """What the map is drawn from, and a point for each client that trains, [m, 2].

        The point of a client that is not served or did not answer is NaN. There is no map where
        clusters are withheld: it would show them.
        """
        count = len(self.federation)
        if bool((serving.ids >= count).any()):  # these are others; all that train are placed
            everyone = torch.arange(count)
            serving = serving._replace(ids=everyone, cluster=torch.zeros_like(everyone))
        points = torch.full((count, 2), math.nan, dtype=torch.float64)
        ids, rows = (serving.ids[:0], points) if self.withheld else self.scorer.map_rows(serving)
        if not len(ids):
            return "", points
        what, points[ids] = place_in_plane(rows, compares_losses(serving))
        return what, points

    def tables(
        self,
        serving: Serving,
        evaluation: Evaluation,
        trained: Evaluation,
        personal: PersonalModels | None = None,
    ) -> dict[str, Any]:
        """The clients one by one, as columns: those that trained, and unseen ones if any.

        They are `trained` on one part of the data, and the `evaluation` is by the run's protocol.
        """
        if serving.choose is not None:
            return nobodys_tables(self.federation, self.scorer, serving)
        placed = self.map(serving)
        tables = client_tables(self.federation, self.scorer, serving, trained, evaluation, placed)
        tables["clients"] |= self.honest.columns()
        if personal is not None:
            tables["clients"] |= personal_columns(
                personal, tables["clients"]["accuracy"], len(self.federation)
            )
        return tables

    def _peers(self, serving: Serving) -> Tensor:
        """For each training client a test client of the same true cluster, one after the other.

        The paper tests a local model on all test data of its rotation; one test machine each has
        the same expectation and costs as much as any other evaluation.
        """
        true, other = self.federation.cluster, self.federation.test_cluster
        if true is None or other is None:
            raise DataError(
                "models that clients make for themselves can be tested on other clients only "
                "where the true clusters are known"
            )
        peers = torch.empty(len(true), dtype=torch.long)
        for j in sorted(set(true.tolist())):
            mine = torch.nonzero(true == j).flatten()
            theirs = len(self.federation) + torch.nonzero(other == j).flatten()
            if len(theirs) == 0:
                raise DataError(f"true cluster {j} has no test client to test its models on")
            peers[mine] = theirs[torch.arange(len(mine)) % len(theirs)]
        return peers[serving.ids]


def constant_output(task: Task, trained: Evaluation | None) -> Tensor | None:
    """The output [c] that is best for the samples trained on if all have the same one, if known."""
    output_of = getattr(task, "constant_output", None)
    if output_of is None or trained is None or trained.total is None:
        return None
    found: Tensor = output_of(trained.total)
    return found
