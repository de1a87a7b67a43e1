"""How a run is judged: which client is served which model, and how well.

The protocols differ in the data by which a client chooses its model. `train-loss`: its own training
part, as a real client would. `test-loss`: the very data it is then scored on, labels included, as
the IFCA paper does with its test machines. The choice is made by showing the clients one part or
the other; no algorithm has code for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import Algorithm, Serving
from coterie.core.cohort import Cohort
from coterie.core.errors import DataError, SettingError
from coterie.core.population import Population
from coterie.core.task import MetricSums, TaskMetrics
from coterie.data.federation import Federation
from coterie.engine.malloc import tidily
from coterie.engine.simulator import Simulator
from coterie.evaluation import measures as metrics
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import select_rows, to_device

# A map of clients is drawn from their losses up to this many models, else from gradients.
MAPPED_MODELS = 64
PLANE_ROWS = 4096  # that are taken to double precision at a time
SKETCH = 64  # dimensions that gradients are projected to before the map is drawn


class Judged(NamedTuple):
    """Who was served what, and how well."""

    serving: Serving
    summary: TaskMetrics
    found: Tensor | None = None  # [N] the cluster of every sample, where samples have one
    true: Tensor | None = None  # [N] the label of every sample


class Evaluator:
    """Judges states of one run."""

    def __init__(
        self,
        algorithm: Algorithm[tuple[Tensor, ...]],
        federation: Federation,
        train: Simulator,
        protocol: str,
        *,
        population: Population | None = None,
        test: Simulator | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.federation = federation
        self.train = train
        self.population = population or train  # who chooses, where the clients that train do
        self.protocol = resolved(protocol, federation)
        self.test = test
        if test is None and federation.test is not None:
            self.test = train.with_samples(
                federation.test, len(federation) if federation.unseen else 0
            )

    def serve(self, state: tuple[Tensor, ...], population: Population) -> Serving:
        """Which model serves which client, judged by the data of `population`."""
        return self.algorithm.serve(state, population.at("serve"))

    def judge(self, state: tuple[Tensor, ...]) -> Judged:
        """The clients that the federation is tested on, by the run's protocol.

        Without a test part, the training part takes its place and metrics are called `train_...`.
        """
        if self.test is None:
            return self._score(self.serve(state, self.population), self.train)
        by = self.test if self.protocol == "test-loss" else self.population
        if self.federation.unseen:
            serving = self.serve(state, self.test)
            if serving.adapt is not None:
                return self._score_on_peers(self.serve(state, self.population))
            return self._score(serving, self.test)
        return self._score(self.serve(state, by), self.test)

    def metrics(self, judged: Judged, cluster: Tensor) -> dict[str, float]:
        """All numbers of a state; `cluster` [m] is where the training clients are, -1 unknown."""
        prefix = "" if self.test is not None else "train_"
        numbers = {prefix + name: value for name, value in judged.summary.metrics.items()}
        known = cluster >= 0
        found, true = cluster[known], self.federation.cluster
        true = None if true is None else true[known]
        if judged.found is not None:  # samples are clustered, not clients
            found, true = judged.found, judged.true if self.federation.sample_clusters else None
        numbers["clusters"] = len(set(found.tolist()))
        if true is not None and len(found):
            numbers |= metrics.clustering(found, true)
            if judged.found is not None:
                numbers["accuracy"] = metrics.matched(found, true)
        models, truth = judged.serving.models, self.federation.truth
        if truth is not None and judged.serving.adapt is None and models.shape[1] == truth.shape[1]:
            numbers |= metrics.distances(models, truth)
            if self.federation.noise is not None and "distance" in numbers:
                enough = 0.6 * self.federation.noise  # as the IFCA paper has it
                numbers["success"] = float(numbers["distance"] <= enough)
                numbers["success_nearest"] = float(numbers["distance_nearest"] <= enough)
        return numbers

    def by_cluster(self, judged: Judged) -> dict[str, list[float | None]]:
        """Mean accuracy and loss of the clients in each cluster, None where one has no client.

        Empty where clients have models of their own or more than can be told apart, and where it
        is samples that are clustered.
        """
        k = len(judged.serving.models)
        apart = judged.serving.adapt is not None or judged.found is not None
        if apart or not 1 < k <= MAPPED_MODELS:
            return {}
        members = torch.nn.functional.one_hot(judged.serving.cluster, k).double()  # [m, k]
        count = members.sum(0)
        return {
            name: [
                round(mean, 6) if n else None
                for mean, n in zip(
                    (values.double() @ members / count.clamp_min(1)).tolist(), count, strict=True
                )
            ]
            for name, values in judged.summary.clients.items()
            if name in ("accuracy", "loss")
        }

    def train_loss(self, serving: Serving) -> float:
        """The mean loss over all training samples."""
        return self._score(serving, self.train).summary.metrics["loss"]

    def own_models(self, serving: Serving) -> Tensor:
        """Every model in use: [k, d], or where clients adapt it one for each of them."""
        if serving.adapt is None:
            return serving.models
        rows = torch.empty(len(serving.ids), serving.models.shape[1], dtype=serving.models.dtype)
        for ids in tidily(self.train.chunks(serving.ids)):
            rows[positions(serving.ids, ids)] = to_device(self._models(serving, ids), CPU)
        return rows

    def labels(self, serving: Serving) -> Tensor | None:
        """The cluster of every training sample, [N]; None where clients are clustered."""
        return None if serving.label is None else self._score(serving, self.train).found

    def map(self, serving: Serving) -> tuple[str, Tensor]:
        """A point in the plane for each training client, and what it is a projection of."""
        shared = has_losses(serving)
        chunks, order = [], []
        for ids in tidily(self.train.chunks(serving.ids)):
            cohort = self.train.cohort(ids, 0, (self.train.seed, "map"))
            place = self.train.on_device(
                losses_or_gradients, cohort, serving.models, self.train.seed, shared
            )
            chunks.append(to_device(place, CPU))
            order.append(ids)
        rows = torch.cat(chunks)[torch.cat(order).argsort()]
        return on_a_map(rows, shared)

    def tables(self, serving: Serving, judged: Judged) -> dict[str, Any]:
        """The clients one by one, as columns: those that trained, and unseen ones if any."""
        what, points = self.map(serving)
        names = self.federation.clients
        clients = columns(serving, self.train, self.federation.cluster, names)
        clients["loss"] = self._score(serving, self.train).summary.clients["loss"].tolist()
        clients["x"], clients["y"] = points[:, 0].tolist(), points[:, 1].tolist()
        tested = {name: values.tolist() for name, values in judged.summary.clients.items()}
        clients["accuracy"] = None
        unseen = None
        if self.federation.unseen and judged.serving.adapt is None:
            assert self.test is not None
            unseen = columns(judged.serving, self.test, self.federation.test_cluster)
            unseen |= {"accuracy": tested.get("accuracy"), "loss": tested["loss"]}
        elif self.test is not None:
            clients["accuracy"] = tested.get("accuracy")
        tables = {"map": what, "clients": clients, "test_clients": unseen}
        if judged.found is not None:
            sizes = (self.test or self.train).samples.sizes
            tables["sample_clusters"] = self._sample_clusters(judged, sizes)
        return tables

    def _sample_clusters(self, judged: Judged, sizes: Tensor) -> dict[str, Any]:
        """The clusters of the samples that were judged, `sizes` [m] of each client."""
        assert judged.found is not None
        assert judged.true is not None
        k = len(judged.serving.models)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        table: dict[str, Any] = {
            "cluster": list(range(k)),
            "samples": torch.bincount(judged.found, minlength=k).tolist(),
            "clients": [len(owner[judged.found == j].unique()) for j in range(k)],
            "true": None,
            "overlaps": None,
        }
        if self.federation.sample_clusters:
            true, place = judged.true.unique(return_inverse=True)
            pairs = torch.bincount(judged.found * len(true) + place, minlength=k * len(true))
            names = self.federation.classes
            table["true"] = [names[t] if names else t for t in true.tolist()]
            table["overlaps"] = pairs.view(k, -1).tolist()
        return table

    def _models(self, serving: Serving, ids: Tensor) -> Tensor:
        """The models [c, d] that clients `ids` use."""
        models = select_rows(serving.models, serving.cluster[positions(serving.ids, ids)])
        if serving.adapt is None:
            return models
        cohort = self.train.cohort(ids, 0, (self.train.seed, "adapt"))
        adapted: Tensor = self.train.on_device(serving.adapt, cohort, model=models)
        return adapted

    def _score(self, serving: Serving, on: Simulator) -> Judged:
        """Each served client on its own rows in `on`."""
        return self._scores(serving, on, serving.ids, serving.ids)

    def _score_on_peers(self, serving: Serving) -> Judged:
        """Each training client's own model on a test client of the same true cluster, in turn.

        The paper tests a local model on all test data of its rotation; one test machine each has
        the same expectation and costs as much as any other evaluation.
        """
        assert self.test is not None
        true, other = self.federation.cluster, self.federation.test_cluster
        if true is None or other is None:
            raise DataError(
                "models that clients make for themselves can be tested on other clients only "
                "where the true clusters are known"
            )
        peers = torch.empty_like(serving.ids)
        for j in sorted(set(true.tolist())):
            mine = torch.nonzero(true == j).flatten()
            theirs = self.test.ids[other == j]
            if len(theirs) == 0:
                raise DataError(f"true cluster {j} has no test client to test its models on")
            peers[mine] = theirs[torch.arange(len(mine)) % len(theirs)]
        return self._scores(serving, self.test, serving.ids, peers)

    def _scores(self, serving: Serving, on: Simulator, ids: Tensor, rows_of: Tensor) -> Judged:
        """Clients `ids` with their models on the samples of clients `rows_of` in `on`."""
        tally = MetricSums(on.task, len(ids))
        labels: dict[int, tuple[Tensor, Tensor]] = {}  # place -> found and true ones
        for chunk in tidily(on.chunking.cut(on.samples.sizes[on.locate(rows_of)])):
            cohort = on.cohort(rows_of[chunk], 0, (on.seed, "score"))
            if serving.label is None:
                found = on.on_device(cohort.score, self._models(serving, ids[chunk]))
            else:
                label = on.on_device(serving.label, cohort, models=serving.models)
                found = on.on_device(score_by_label, cohort, serving.models, label)
                for place, row, (_, y) in zip(chunk.tolist(), label, cohort, strict=True):
                    labels[place] = to_device(row[: len(y)], CPU), to_device(y, CPU)
            tally.add(chunk, to_device(found, CPU))
        summary = tally.finish()
        if serving.label is None:
            return Judged(serving, summary)
        pairs = [labels[place] for place in range(len(ids))]
        return Judged(serving, summary, *map(torch.cat, zip(*pairs, strict=True)))


def score_by_label(cohort: Cohort, models: Tensor, label: Tensor) -> Tensor:
    """The task's sums [m, s] where each sample is under the model that its label [m, n] names."""
    total = torch.zeros(())
    for j in label.unique().tolist():
        model = models[j].expand(len(cohort), -1)
        total = total + cohort.among(label == j).score(model)
    return total


def columns(
    serving: Serving, simulator: Simulator, true: Tensor | None, names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The columns that every table of clients has."""
    return {
        "client": serving.ids.tolist(),
        "name": [names[i] for i in serving.ids.tolist()] if names else None,
        "samples": simulator.samples.sizes[simulator.locate(serving.ids)].tolist(),
        "cluster": serving.cluster.tolist(),
        "true": None if true is None else true[simulator.locate(serving.ids)].tolist(),
    }


def resolved(protocol: str, federation: Federation) -> str:
    """The protocol by its name; clients that only have test data can choose only by it."""
    if not federation.unseen:
        return "train-loss" if protocol == "auto" else protocol
    if protocol == "train-loss":
        raise SettingError(
            "`protocol` train-loss needs test clients with training data of their own, "
            "but those of this federation have only test data; use test-loss"
        )
    return "test-loss"


def positions(ids: Tensor, some: Tensor) -> Tensor:
    """Where `some` stand in increasing `ids`."""
    return torch.searchsorted(ids, some)


def has_losses(serving: Serving) -> bool:
    """Whether clients are mapped by their losses under all models."""
    return serving.adapt is None and 1 < len(serving.models) <= MAPPED_MODELS


def losses_or_gradients(cohort: Cohort, models: Tensor, seed: int, shared: bool) -> Tensor:
    """What places clients on a map: their losses [m, k], or else their gradients at one model."""
    if shared:
        return cohort.loss(models)
    return sketched(cohort.gradient(models[:1].expand(len(cohort), -1)), seed)


def on_a_map(rows: Tensor, shared: bool) -> tuple[str, Tensor]:
    """Points in the plane [m, 2] from losses or gradients [m, s], and what they are drawn from."""
    k = rows.shape[1]
    if shared and k > 2:
        return f"losses under the {k} models", drawn_to_models(rows.double())
    what = "losses under the 2 models" if shared else "gradients at one model"
    return what, plane(rows)


def sketched(rows: Tensor, seed: int) -> Tensor:
    """Rows [m, d] in 64 dimensions, distances roughly kept: coordinates added up in random groups
    with random signs, so that the projection itself takes no more room than one row."""
    generator = seeds.generator(seed, "sketch")
    group = torch.randint(SKETCH, (rows.shape[1],), generator=generator, device="cpu")
    sign = torch.randint(2, (rows.shape[1],), generator=generator, device="cpu")
    group, sign = group.to(rows.device), sign.to(rows) * 2 - 1
    return rows.new_zeros(len(rows), SKETCH).index_add_(1, group, rows * sign)


def drawn_to_models(losses: Tensor) -> Tensor:
    """Models on a circle, each client between them [m, 2], nearer to those that serve it better.

    A projection would lay four clusters that are equally far apart on top of each other.
    """
    worse = losses.nan_to_num(nan=torch.inf) - losses.amin(1, keepdim=True)  # [m, k]
    typical = worse.sort(1).values[:, 1].median().clamp_min(1e-12)  # of the second best
    weight = torch.softmax(-worse / typical, 1)
    angle = 2 * torch.pi * torch.arange(losses.shape[1]).double() / losses.shape[1]
    return weight @ torch.stack([angle.cos(), angle.sin()], 1)


def plane(rows: Tensor) -> Tensor:
    """The two leading principal components of rows [m, s], [m, 2], in double precision."""
    rows = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    centre = rows.mean(0, dtype=torch.float64)
    # A few rows at a time: of very many, no copy in double precision is made.
    parts = [slice(begin, begin + PLANE_ROWS) for begin in range(0, len(rows), PLANE_ROWS)]
    moments = sum((rows[part] - centre).T @ (rows[part] - centre) for part in parts)
    axes = torch.linalg.eigh(moments).eigenvectors.flip(1)[:, :2]  # the largest is last
    # The sign of a component is arbitrary: let its largest coefficient be positive.
    largest = axes.abs().argmax(0, keepdim=True)
    axes = axes * axes.gather(0, largest).sign()
    points = torch.cat([(rows[part] - centre) @ axes for part in parts])
    flat = points.new_zeros(len(points), 2 - points.shape[1])  # where rows have one component only
    return torch.cat([points, flat], 1)
