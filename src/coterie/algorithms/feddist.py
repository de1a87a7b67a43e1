"""FedDist and FedDWS: the server goes part of the way to the mean of the clients, as Reptile does.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, sections 3.6
and 5.5, where they are baselines. FedDist has the distance-based objective of Reptile (A. Nichol,
J. Achiam, J. Schulman: On First-Order Meta-Learning Algorithms, 2018,
https://arxiv.org/abs/1803.02999) in a federated setting: the distance 1/2 |w - w_i|^2 of the model
from what clients make of it, of which the server makes a gradient step of size s:

    for t = 0, ..., T - 1:
        server:   send w to the participating clients S_t
        client i: w_i = LocalUpdate(w)
        server:   w = w - s (w - mean of w_i over S_t)

FedDWS is "a variation of FedDist by changing the aggregation to weighted averaging where the weight
depends on the data size of each device": the mean is the sum of n_i / n w_i.

Differences from the thesis
- The thesis has one line of text about each; s = 0.6 is what its author's code of FedDist has. That
  of FedDWS stops with an error, so that s is the same there.
- Reptile adapts the model to a client before it is tested there. The thesis does not say so of
  them, and clients use w as it is.
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
from coterie.core.settings import setting
from coterie.core.validate import above
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FedDist(LocalTraining):
    """One model for all, which goes part of the way to the mean of what clients make of it."""

    server_step: float = setting(
        0.6, "share s of the way to the mean that the server goes; 1: FedAvg", above(0)
    )
    weighting: str = weighting_setting(added=True)

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        model = state.model - self.server_step * (state.model - up.pooled_mean("model"))
        return State(model), Info(ids, up.cluster, 1, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        model = self.local_update(cohort, model.expand(len(cohort), -1))
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)


@dataclass(frozen=True, kw_only=True)
class FedDWS(FedDist):
    """FedDist with a mean weighted by samples."""

    weighting: str = weighting_setting("size", added=True)
