"""FedDANE: FedProx whose clients also correct their own gradient by that of others.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: FedDANE: A Federated Newton-Type
Method, Asilomar 2019, https://arxiv.org/abs/2001.01920. Algorithm 2:

    for t = 0, ..., T - 1:
        server:   send w^t to some clients S_t
        client k: g_k = gradient of F_k at w^t, k in S_t
        server:   g = mean of g_k over S_t; send w^t and g to other clients S'_t
        client k: w_k = an inexact minimiser of
                  F_k(w) + <g - gradient of F_k at w^t, w - w^t> + mu/2 |w - w^t|^2, k in S'_t
        server:   w^(t+1) = mean of w_k over S'_t

With c = g - gradient of F_k at w^t, the last two terms are mu/2 |w - (w^t - c / mu)|^2 but for a
constant: the correction moves the point that the proximal term pulls to.

Differences from the paper
- S_t and S'_t are the two halves of the clients that take part in the round, drawn at random, so
  that they never have a client in common; the paper draws two samples, which may. A client that is
  alone is in both. `gradients=all` lets all participants do both, as DANE does.
- mu must be above 0 (the paper also tries 0), for the correction is made through the proximal term.
- The inexact minimiser is LocalUpdate on that objective, the same amount of work for everybody.
- The paper samples clients in proportion to their size and takes plain means. Here all are as
  likely; means are plain, or with `weighting=size` in proportion to size.
- If no gradient arrives, the model stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size, Update
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import above, one_of
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Gradient(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    gradient: Update  # [m, d] g_k
    size: Size  # [m] samples n_k


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    model: Model  # [m, d] w_k
    size: Size  # [m] samples n_k


@dataclass(frozen=True, kw_only=True)
class FedDANE(LocalTraining):
    """One model for all: clients train it on their loss, corrected by the gradient of others."""

    mu: float = setting(0.1, "strength of local training's pull to the model sent", above(0))
    gradients: str = setting(
        "others",
        "whose gradients correct a client's; others: half of the clients give them and the other "
        "half trains, all: everybody does both",
        one_of("others", "all"),
    )
    weighting: str = weighting_setting()

    @property
    def traits(self) -> Traits:
        return Traits(withholds=True, clients_draw=self.gradients == "others")

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        one, other = self._samples(clients)
        by_size = self.weighting == "size"
        fold = ByCluster(1, updates={"gradient": "model"}, by_size=by_size)
        asked, given = one.run(self.differentiate, fold=fold, model=state.model)
        if not len(asked):
            return state, Info(asked, given.cluster, 1, weights=given.weights)
        fold = ByCluster(1, {"model": "model"}, by_size=by_size)
        mean = given.pooled_mean("gradient")
        trained, up = other.run(self.train, fold=fold, model=state.model, gradient=mean)
        ids = torch.cat([asked, trained]).unique()
        cluster = None if up.cluster is None else torch.zeros_like(ids)
        return State(up.pooled_mean("model")), Info(ids, cluster, 1, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client(fold=ByCluster)
    def differentiate(self, cohort: Cohort, model: Tensor) -> Gradient:
        gradient = self._gradient(cohort, model.expand(len(cohort), -1))
        return Gradient(torch.zeros_like(cohort.ids), gradient, cohort.size)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor, gradient: Tensor) -> Upload:
        sent = model.expand(len(cohort), -1)
        correction = gradient - self._gradient(cohort, sent)
        model = self.local_update(cohort, sent, pull=self.mu, anchor=sent - correction / self.mu)
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)

    def _gradient(self, cohort: Cohort, model: Tensor) -> Tensor:
        """The gradient of F_k over all samples of each client; buffers have none."""
        return cohort.gradient(model, weight_decay=self.weight_decay, statistics=False)

    def _samples(self, clients: Clients) -> tuple[Clients, Clients]:
        """S_t, who give gradients, and S'_t, who train."""
        count = len(clients.ids)
        if self.gradients == "all" or count < 2:
            return clients, clients
        order = torch.randperm(count, generator=clients.generator("halves"))
        halves = clients.ids[order].tensor_split(2)
        return clients.only(halves[0]), clients.only(halves[1])
