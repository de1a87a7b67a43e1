"""The evaluator: who is served which model by the protocol of a run, and all numbers about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Algorithm, Serving, serve_clients
from coterie.core.errors import DataError
from coterie.data.federation import Federation
from coterie.evaluation import measures
from coterie.evaluation.client_map import MOST_MODELS, compares_losses, place_clients
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
            return scorer.score(self.serve(state), "train", with_map=True)
        if not self.federation.unseen:
            by = "test" if self.protocol == "test-loss" else "train"
            return scorer.score(self.serve(state, by), "test", with_map=True)
        serving = self.serve(state, "test")
        if serving.adapt is None:
            return scorer.score(serving, "test")
        serving = self.serve(state)
        return scorer.score(serving, "test", samples_of=self._peers(serving))

    def metrics(self, evaluation: Evaluation, cluster: Tensor) -> dict[str, float]:
        """All numbers of a state; `cluster` [m] is where the training clients are, -1 unknown."""
        prefix = "" if self.scorer.tested else "train_"
        numbers = {prefix + name: value for name, value in evaluation.summary.metrics.items()}
        known = cluster >= 0
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

        Empty where clients have models of their own or more than can be told apart, and where
        samples are clustered.
        """
        serving, k = evaluation.serving, len(evaluation.serving.models)
        if serving.adapt is not None or evaluation.samples is not None or not 1 < k <= MOST_MODELS:
            return {}
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
        """The mean loss over all training samples."""
        return self.scorer.score(serving, "train").summary.metrics["loss"]

    def map(self, serving: Serving) -> tuple[str, Tensor]:
        """What the map is drawn from, and a point for each of the serving's clients, [m, 2].

        A client that did not answer is in the middle.
        """
        ids, rows = self.scorer.map_rows(serving)
        what, placed = place_clients(rows, compares_losses(serving))
        points = placed.mean(0).repeat(len(self.federation), 1)
        points[ids] = placed
        return what, points[serving.ids]

    def tables(self, serving: Serving, evaluation: Evaluation) -> dict[str, Any]:
        """The clients one by one, as columns: those that trained, and unseen ones if any."""
        if serving.choose is not None:
            return self._tables_of_nobody()
        what, points = self.map(serving)
        sizes, names = self.scorer.sizes("train"), self.federation.clients
        clients = client_columns(serving, serving.ids, sizes, self.federation.cluster, names)
        clients["loss"] = self.scorer.score(serving, "train").summary.clients["loss"].tolist()
        clients["x"], clients["y"] = points[:, 0].tolist(), points[:, 1].tolist()
        tested = {name: values.tolist() for name, values in evaluation.summary.clients.items()}
        clients["accuracy"] = None
        unseen = None
        if self.federation.unseen and evaluation.serving.adapt is None:
            rows = evaluation.serving.ids - len(self.federation)
            sizes, true = self.scorer.sizes("test"), self.federation.test_cluster
            unseen = client_columns(evaluation.serving, rows, sizes, true)
            unseen |= {"accuracy": tested.get("accuracy"), "loss": tested["loss"]}
        elif self.scorer.tested:
            clients["accuracy"] = tested.get("accuracy")
        tables = {"map": what, "clients": clients, "test_clients": unseen}
        if evaluation.samples is not None:
            k = len(evaluation.serving.models)
            tables["sample_clusters"] = self._sample_table(evaluation.samples, k)
        return tables

    def _tables_of_nobody(self) -> dict[str, Any]:
        """The clients that trained, of whom the server knows no more than how many samples."""
        sizes, true = self.scorer.sizes("train"), self.federation.cluster
        clients: dict[str, Any] = {
            "client": list(range(len(sizes))),
            "name": list(self.federation.clients) or None,
            "samples": sizes.tolist(),
            "cluster": [None] * len(sizes),
            "true": None if true is None else true.tolist(),
        }
        clients |= dict.fromkeys(("loss", "x", "y", "accuracy"))
        return {"map": "", "clients": clients, "test_clients": None}

    def _sample_table(self, samples: SampleClusters, k: int) -> dict[str, Any]:
        """The k clusters of the samples that were scored, as columns."""
        owner = torch.repeat_interleave(torch.arange(len(samples.sizes)), samples.sizes)
        table: dict[str, Any] = {
            "cluster": list(range(k)),
            "samples": torch.bincount(samples.found, minlength=k).tolist(),
            "clients": [len(owner[samples.found == j].unique()) for j in range(k)],
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
        peers = torch.empty_like(serving.ids)
        for j in sorted(set(true.tolist())):
            mine = torch.nonzero(true == j).flatten()
            theirs = len(self.federation) + torch.nonzero(other == j).flatten()
            if len(theirs) == 0:
                raise DataError(f"true cluster {j} has no test client to test its models on")
            peers[mine] = theirs[torch.arange(len(mine)) % len(theirs)]
        return peers


def client_columns(
    serving: Serving, rows: Tensor, sizes: Tensor, true: Tensor | None, names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The columns that every table of clients has; `rows` are those of clients in `sizes` [m]."""
    return {
        "client": serving.ids.tolist(),
        "name": [names[i] for i in serving.ids.tolist()] if names else None,
        "samples": sizes[rows].tolist(),
        "cluster": serving.cluster.tolist(),
        "shares": None if serving.mixture is None else serving.mixture.tolist(),
        "true": None if true is None else true[rows].tolist(),
    }
