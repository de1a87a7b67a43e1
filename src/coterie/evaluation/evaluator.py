"""The evaluator: who is served which model by the protocol of a run, and all numbers about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Algorithm, Serving, serve_clients
from coterie.core.errors import DataError
from coterie.data.federation import Federation
from coterie.evaluation import measures
from coterie.evaluation.client_map import MOST_MODELS, compares_losses, place_in_plane
from coterie.evaluation.personal import (
    FineTuning,
    PersonalModels,
    check_tunable,
    choose_personal,
)
from coterie.evaluation.protocols import resolve_protocol
from coterie.evaluation.scoring import Evaluation, SampleClusters, Scorer, cluster_summary


@dataclass
class Evaluator:
    """Evaluates states of one run."""

    algorithm: Algorithm[Any]
    federation: Federation
    scorer: Scorer
    protocol: str  # as the run has it; `auto` is replaced
    withheld: bool = False  # whether the server is not told which client is in which cluster
    tuning: FineTuning | None = None  # how clients fine-tune their models after the last round
    attackers: Tensor | None = None  # [m] who attacks; metrics are those of the others

    def __post_init__(self) -> None:
        self.protocol = resolve_protocol(self.protocol, self.federation)

    def serve(self, state: tuple[Tensor, ...], part: str = "train") -> Serving:
        """Which model serves which client, chosen by a part of its data."""
        clients = self.scorer.clients(part).through(withheld=self.withheld)
        return serve_clients(self.algorithm, state, clients)._replace(chosen_by=part)

    def evaluate(self, state: tuple[Tensor, ...]) -> Evaluation:
        """Score the clients that the federation is tested on, by the run's protocol.

        Without a test part, the training part takes its place and metrics are called `train_...`.
        """
        scorer = self.scorer
        if not scorer.tested:
            return self._score(self.serve(state), "train")
        if not self.federation.unseen:
            by = "test" if self.protocol == "test-loss" else "train"
            return self._score(self.serve(state, by), "test")
        serving = self.serve(state, "test")
        if serving.adapt is None:
            return scorer.score(serving, "test")
        serving = self.serve(state)
        return scorer.score(serving, "test", samples_of=self._peers(serving))

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
            if self.attackers is not None:
                serving = serving.for_clients(~self.attackers[serving.ids])
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

    def personal_metrics(
        self, before: dict[str, float], personal: PersonalModels
    ) -> dict[str, float]:
        """All numbers of fine-tuned models; those `before` that are of samples are `untuned_`."""
        prefix = "" if self.scorer.tested else "train_"
        names = [f"{prefix}{name}" for name in measures.OF_SAMPLES]
        untuned = {f"untuned_{name}": before[name] for name in names if name in before}
        after = {f"{prefix}{name}": value for name, value in personal.summary.metrics.items()}
        return before | after | untuned | personal.metrics()

    def _score(self, serving: Serving, part: str) -> Evaluation:
        """Score clients that train, the honest ones and beside them those who attack."""
        with_map = not self.withheld
        if self.attackers is None or serving.choose is not None:
            return self.scorer.score(serving, part, with_map=with_map)
        bad = self.attackers[serving.ids]
        honest = self.scorer.score(serving.for_clients(~bad), part, with_map=with_map)
        return honest._replace(attackers=self.scorer.score(serving.for_clients(bad), part))

    def metrics(self, evaluation: Evaluation, cluster: Tensor) -> dict[str, float]:
        """All numbers of a state; `cluster` [m] is where the training clients are, -1 unknown."""
        prefix = "" if self.scorer.tested else "train_"
        numbers = {prefix + name: value for name, value in evaluation.summary.metrics.items()}
        if evaluation.attackers is not None:
            theirs = evaluation.attackers.summary.metrics
            numbers |= {
                f"attackers_{prefix}{n}": theirs[n] for n in ("accuracy", "loss") if n in theirs
            }
        known = cluster >= 0 if self.attackers is None else (cluster >= 0) & ~self.attackers
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
        self, serving: Serving, evaluation: Evaluation, personal: PersonalModels | None = None
    ) -> dict[str, Any]:
        """The clients one by one, as columns: those that trained, and unseen ones if any.

        Every client has its row; what is not known of it is None.
        """
        if serving.choose is not None:
            return self._tables_of_nobody(serving)
        what, points = self.map(serving)
        count, tested = len(self.federation), evaluation.summary.clients
        sizes, names = self.scorer.sizes("train"), self.federation.clients
        clients = client_columns(serving, 0, sizes, self.federation.cluster, names)
        trained = self.scorer.score(serving, "train")
        losses = trained.summary.clients.get("loss", torch.zeros(0))
        clients["loss"] = fill_column(trained.serving.ids, losses, count)
        for name, values in zip("xy", points.T.tolist(), strict=True):
            clients[name] = [None if math.isnan(value) else value for value in values]
        clients["accuracy"] = None
        unseen = None
        if self.federation.unseen and evaluation.serving.adapt is None:
            sizes, true = self.scorer.sizes("test"), self.federation.test_cluster
            unseen = client_columns(evaluation.serving, count, sizes, true)
            rows = evaluation.serving.ids - count
            unseen["accuracy"] = fill_column(rows, tested.get("accuracy"), len(sizes))
            unseen["loss"] = fill_column(rows, tested.get("loss", torch.zeros(0)), len(sizes))
        elif self.scorer.tested:
            ids, accuracy = evaluation.serving.ids, tested.get("accuracy")
            beside = evaluation.attackers
            if beside is not None and accuracy is not None:
                ids = torch.cat([ids, beside.serving.ids])
                theirs = beside.summary.clients.get("accuracy", accuracy[:0])
                accuracy = torch.cat([accuracy, theirs])
            clients["accuracy"] = fill_column(ids, accuracy, count)
        if self.attackers is not None:
            clients["attacker"] = self.attackers.tolist()
        if personal is not None:
            clients |= personal_columns(personal, clients["accuracy"], count)
        tables = {"map": what, "clients": clients, "test_clients": unseen}
        if evaluation.samples is not None:
            k = len(evaluation.serving.models)
            tables["sample_clusters"] = self._sample_table(evaluation.samples, k)
        return tables

    def _tables_of_nobody(self, serving: Serving) -> dict[str, Any]:
        """The clients that trained, of whom the server knows no more than how many samples."""
        sizes, names = self.scorer.sizes("train"), self.federation.clients
        nobody = serving.for_clients(torch.zeros_like(serving.ids, dtype=torch.bool))
        clients = client_columns(nobody, 0, sizes, self.federation.cluster, names)
        clients |= dict.fromkeys(("loss", "x", "y", "accuracy"))
        return {"map": "", "clients": clients, "test_clients": None}

    def _sample_table(self, samples: SampleClusters, k: int) -> dict[str, Any]:
        """The k clusters of the samples that were scored, as columns."""
        owner = torch.repeat_interleave(torch.arange(len(samples.sizes)), samples.sizes)
        table: dict[str, Any] = {
            "cluster": list(range(k)),
            "samples": torch.bincount(samples.found, minlength=k).tolist(),
            "clients": [len(owner[samples.found == j].unique()) for j in range(k)],
            "loss": None if samples.losses is None else known_values(samples.losses),
            "true": None,
            "overlaps": None,
        }
        if self.federation.sample_clusters:
            true, place = samples.true.unique(return_inverse=True)
            pairs = torch.bincount(samples.found * len(true) + place, minlength=k * len(true))
            names = self.federation.classes
            table["true"] = [names[t] if names else t for t in true.tolist()]
            table["overlaps"] = pairs.view(k, -1).tolist()
        return table

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


def client_columns(
    serving: Serving, first: int, sizes: Tensor, true: Tensor | None, names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The columns that every table of clients has.

    It has a row for each of the clients with `sizes` [m], whose ids begin with `first`.
    """
    count, known = len(sizes), serving.cluster >= 0
    return {
        "client": list(range(first, first + count)),
        "name": list(names) if names else None,
        "samples": sizes.tolist(),
        "cluster": fill_column((serving.ids - first)[known], serving.cluster[known], count),
        "shares": fill_column(serving.ids - first, serving.mixture, count),
        "true": None if true is None else true.tolist(),
    }


def personal_columns(
    personal: PersonalModels, untuned: list[Any] | None, count: int
) -> dict[str, Any]:
    """The columns of clients that fine-tune their models; `untuned` was the accuracy before."""
    if personal.moved is None or personal.uses_own is None:
        return {}
    ids = personal.serving.ids
    uses_own = fill_column(ids, personal.uses_own, count) or []
    accuracy = fill_column(ids, personal.summary.clients.get("accuracy"), count)
    if accuracy is not None and untuned is not None:  # attackers do not fine-tune
        pairs = zip(accuracy, untuned, strict=True)
        accuracy = [before if after is None else after for after, before in pairs]
    return {
        "accuracy": accuracy,
        "untuned_accuracy": untuned,
        "moved": fill_column(ids, personal.moved, count),
        "model": [None if own is None else ("own" if own else "shared") for own in uses_own],
    }


def known_values(values: Tensor) -> list[float | None]:
    """Values [k] with six decimals, None where one is not a number.

    >>> known_values(torch.tensor([0.25, torch.nan]))
    [0.25, None]
    """
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]


def fill_column(rows: Tensor, values: Tensor | None, count: int) -> list[Any] | None:
    """A column of `count` values: those at `rows` [a] are given [a], all others are None.

    There is no column if there are no values, as of the accuracy where nothing is classified.

    >>> fill_column(torch.tensor([0, 2]), torch.tensor([5, 7]), 3)
    [5, None, 7]
    """
    if values is None:
        return None
    column: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values.tolist(), strict=True):
        column[row] = value
    return column
