"""FedDWS: FedDist whose mean counts clients by their samples.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, sections 3.6
and 5.5, where it is a baseline: "a variation of FedDist by changing the aggregation to weighted
averaging where the weight depends on the data size of each device".

    for t = 0, ..., T - 1:
        server:   send w to the participating clients S_t
        client i: w_i = LocalUpdate(w)
        server:   w = w - s (w - sum of n_i / n w_i over S_t)

Differences from the thesis
- The thesis has one line of text about it. Its author's code for it stops with an error, so that s
  is that of FedDist there, 0.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.steps import server_step_setting
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import LocalTraining
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FedDWS(LocalTraining):
    """One model for all, as FedDist, with a mean weighted by samples."""

    server_step: float = server_step_setting()

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=True)
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        model = state.model - self.server_step * (state.model - up.pooled_mean("model"))
        return State(model), Info(ids, up.cluster, 1, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        model = self.local_update(cohort, model.expand(len(cohort), -1))
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)
