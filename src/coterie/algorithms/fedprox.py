"""FedProx: FedAvg whose clients are held near the model they were sent.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in
Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127. Algorithm 2:

    for t = 0, ..., T - 1:
        server:   send w^t to the participating clients S_t
        client k: w_k = an inexact minimiser of F_k(w) + mu/2 |w - w^t|^2
        server:   w^(t+1) = mean of w_k over S_t

Differences from the paper
- The inexact minimiser is LocalUpdate on that objective, the same amount of work for everybody. The
  paper's stragglers, clients that make fewer epochs and are averaged all the same, are not here.
- The paper samples clients in proportion to their size and takes the plain mean. Here all are as
  likely; the mean is plain, or with `weighting=size` in proportion to size.
- mu is fixed; the paper also adapts it from round to round as a heuristic.
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
from coterie.core.validate import at_least
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w^t


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    model: Model  # [m, d] w_k
    size: Size  # [m] samples n_k


@dataclass(frozen=True, kw_only=True)
class FedProx(LocalTraining):
    """One model for all, as FedAvg, with local training pulled back towards it."""

    mu: float = setting(0.1, "strength of local training's pull to the model sent", at_least(0))
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

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        sent = model.expand(len(cohort), -1)
        model = self.local_update(cohort, sent, pull=self.mu, anchor=sent)
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)
