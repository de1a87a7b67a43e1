"""FedAvg: one global model for all clients.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning
of Deep Networks from Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.

    for t = 0, ..., T - 1:
        server:   send w to the participating clients S_t
        client i: w_i = LocalUpdate(w)
        server:   w = sum of n_i / n w_i over S_t

Differences from the paper
- By default every client counts the same, as in the "global model" of the IFCA paper;
  `weighting=size` is the paper's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalTraining):
    """One model for all: clients train it on their data, the server takes the mean."""

    weighting: str = weighting_setting()

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        return State(up.pooled_mean("model")), Info(ids, up.cluster, 1, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    def model_after(self, rounds: int, start: Start) -> Tensor:
        """The model [d] after some rounds before the first, for methods that begin with it."""
        state = self.init(start)
        for r in range(rounds):
            state, _ = self.round(state, start.sample(r))
        return state.model

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        model = self.local_update(cohort, model.expand(len(cohort), -1))
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)
