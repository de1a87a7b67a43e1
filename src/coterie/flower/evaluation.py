"""How a run over a network is judged: every client scores on its own data, and sends sums."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Algorithm, Serving
from coterie.core.task import task_metrics
from coterie.engine.simulator import Simulator
from coterie.evaluation.evaluator import Evaluator, Judged, has_losses, on_a_map
from coterie.flower.clients import Network


class NetworkEvaluator(Evaluator):
    """Judges states of a run whose data are elsewhere.

    Models that clients make for themselves, and the clusters of their samples, do not leave them.
    """

    def __init__(self, algorithm: Algorithm[Any], network: Network) -> None:
        self.algorithm = algorithm
        self.federation = network.federation
        self.train = network
        self.network = network
        self.protocol = "train-loss"
        # What stands for a simulator of the test samples is never asked for any.
        self.test = SimpleNamespace(samples=network.samples) if network.tested else None  # type: ignore[assignment]
        self._map: tuple[Tensor, Tensor] | None = None  # who is on the map, and by what

    def judge(self, state: tuple[Tensor, ...]) -> Judged:
        """The clients on their test samples, or where they have none on those they trained on."""
        serving = self.serve(state, self.train)
        kind = "losses" if has_losses(serving) else "gradients"
        return self._asked(serving, "train" if self.test is None else "test", kind)

    def own_models(self, serving: Serving) -> Tensor:
        return serving.models

    def labels(self, serving: Serving) -> Tensor | None:
        return None

    def map(self, serving: Serving) -> tuple[str, Tensor]:
        """A point for each client; one that did not answer is in the middle."""
        if self._map is None:  # a run that was complete goes on
            self._asked(serving, "train", "losses" if has_losses(serving) else "gradients")
        assert self._map is not None
        ids, rows = self._map
        what, found = on_a_map(rows, has_losses(serving))
        points = found.mean(0).repeat(len(self.network.names), 1)
        points[ids] = found
        return what, points[serving.ids]

    def _score(self, serving: Serving, on: Simulator) -> Judged:
        return self._asked(serving, "train" if on is self.train else "test", "")

    def _asked(self, serving: Serving, part: str, draws_map: str) -> Judged:
        """Each client's sums on a part of its data; those that do not answer are left out."""
        ids, answer = self.network.score(serving, part, draws_map)
        if draws_map:
            self._map = ids, answer.map
        kept = torch.isin(serving.ids, ids)
        serving = serving._replace(ids=serving.ids[kept], cluster=serving.cluster[kept])
        quality = task_metrics(self.network.task, answer.scores)
        if serving.label is None:
            return Judged(serving, quality)
        # As many samples of each kind as there are, client after client.
        pairs = answer.counts.flatten(1).nonzero()
        count = answer.counts.flatten(1)[pairs[:, 0], pairs[:, 1]]
        classes = answer.counts.shape[2]
        found, true = (
            torch.repeat_interleave(side, count)
            for side in (pairs[:, 1] // classes, pairs[:, 1] % classes)
        )
        return Judged(serving, quality, found, true)
