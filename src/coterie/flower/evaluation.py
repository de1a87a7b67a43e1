"""Scoring over a network: every client scores itself on its own data, and sends sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.clients import Clients
from coterie.core.task import TaskMetrics, task_metrics
from coterie.evaluation.client_map import compares_losses
from coterie.evaluation.scoring import Evaluation, SampleClusters
from coterie.flower.clients import Network


class NetworkScorer:
    """Scores models on data that stay with the clients.

    Models that clients make for themselves, and the clusters of their samples, do not leave them.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        # Asked once: nodes come and go, and metrics keep their names.
        self.tested = all(node.tested for node in network.roster.nodes.values())
        self._map: tuple[Tensor, Tensor] | None = None  # ids of clients, and what places them

    def clients(self, part: str) -> Clients:
        return self.network.at("serve")

    def sizes(self, part: str) -> Tensor:
        return self.network.sizes

    def score(
        self, serving: Serving, part: str, samples_of: Tensor | None = None, with_map: bool = False
    ) -> Evaluation:
        """Each client's sums on a part of its data; those that do not answer are left out."""
        assert samples_of is None, "a client of a network has only its own samples"
        ids, answer = self._ask(serving, part, with_map)
        answered = torch.isin(serving.ids, ids)
        serving = serving._replace(ids=serving.ids[answered], cluster=serving.cluster[answered])
        if answer is None:
            nothing = torch.arange(0)
            samples = None if serving.label is None else SampleClusters(nothing, nothing, nothing)
            return Evaluation(serving, TaskMetrics({}, {}), samples)
        quality = task_metrics(self.network.task, answer.scores)
        if serving.label is None:
            return Evaluation(serving, quality)
        # As many samples of each kind as there are, client after client.
        counts = answer.counts.flatten(1)
        pairs = counts.nonzero()
        repeats, classes = counts[pairs[:, 0], pairs[:, 1]], answer.counts.shape[2]
        kinds = pairs[:, 1].repeat_interleave(repeats)
        clusters = SampleClusters(kinds // classes, kinds % classes, counts.sum(1))
        return Evaluation(serving, quality, clusters)

    def own_models(self, serving: Serving) -> Tensor:
        return serving.models

    def sample_labels(self, serving: Serving) -> Tensor | None:
        return None

    def map_rows(self, serving: Serving) -> tuple[Tensor, Tensor]:
        """What came with the last evaluation; asked for only where there was none."""
        if self._map is None:  # a run that was complete is resumed
            self._ask(serving, "train", with_map=True)
        assert self._map is not None
        return self._map

    def _ask(self, serving: Serving, part: str, with_map: bool) -> tuple[Tensor, Any]:
        compared = "losses" if compares_losses(serving) else "gradients"
        ids, answer = self.network.score(serving, part, compared if with_map else "")
        if with_map:
            self._map = ids, torch.zeros(0, 0) if answer is None else answer.map
        return ids, answer
