"""Ditto: one global model, and beside it a model of its own for each client, pulled towards it.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: Fair and Robust Federated Learning Through
Personalization, ICML 2021, https://arxiv.org/abs/2012.04221. Algorithm 1, FedAvg being the global
method:

    for t = 0, ..., T - 1:
        server:   send w^t to the participating clients S_t
        client k: w_k = LocalUpdate(w^t)
                  s times: v_k = v_k - eta (gradient of F_k at v_k + lambda (v_k - w^t))
        server:   w^(t+1) = mean of w_k over S_t

v_k never leaves its client. Nothing comes back from v_k to w, so w is what FedAvg would give.

Differences from the paper
- v_k begins at the w^t that its client is first sent; the paper takes the beginning as given.
- A client that never took part makes its v_k when it is served: s steps from w, pulled towards w.
- lambda is the same for all clients; the paper also lets each choose its own on held-out data.
- The robust means that the paper tries for w are not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
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
    rounds: Tensor  # [] rounds so far


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one global model
    model: Model  # [m, d] w_k
    size: Size  # [m] samples n_k


@dataclass(frozen=True, kw_only=True)
class Ditto(LocalTraining):
    """FedAvg, and for each client a model of its own that is pulled towards the global one."""

    personal_pull: float = setting(
        0.03, "strength lambda of the personal models' pull to the global one", at_least(0)
    )
    personal_steps: int = setting(
        0, "steps s of a personal model in a round; 0: as the global one's", at_least(0)
    )
    weighting: str = weighting_setting()

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        return State(start.models(1)[0], torch.tensor(0))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        model = up.pooled_mean("model")
        return State(model, state.rounds + 1), Info(ids, ids, clients.population)

    def serve(self, state: State, clients: Clients) -> Serving:
        count = len(clients.ids)
        own = partial(self.own, rounds=int(state.rounds))
        return Serving(state.model.expand(count, -1), clients.ids, torch.arange(count), adapt=own)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        sent = model.expand(len(cohort), -1)
        personal = self._personal(cohort, cohort.recall("personal", sent), sent, cohort.round)
        cohort.keep("personal", personal)
        model = self.local_update(cohort, sent)
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)

    @on_client
    def own(self, cohort: Cohort, model: Tensor, rounds: int) -> Tensor:
        mine = cohort.recall("personal", model)
        trained = cohort.remembers("personal")
        if bool(trained.all()):
            return mine
        return torch.where(trained[:, None], mine, self._personal(cohort, model, model, rounds))

    def _personal(self, cohort: Cohort, own: Tensor, model: Tensor, round: int) -> Tensor:
        """Each v_k [m, d] after s steps from its row of `own`, pulled towards `model` [m, d]."""
        work = replace(self, steps=self.personal_steps, epochs=0) if self.personal_steps else self
        return work.local_update(cohort, own, pull=self.personal_pull, anchor=model, round=round)
