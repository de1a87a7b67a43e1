"""FedSGD: gradient descent on one global model, one gradient of each client per step.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning
of Deep Networks from Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629, where it
is the baseline of FedAvg: a single local gradient per round (E = 1, B = infinity).

    for t = 0, ..., T - 1:
        server:   send w to the participating clients S_t
        client i: g_i = gradient of F_i at w
        server:   w = w - eta sum of n_i / n g_i over S_t

Differences from the paper
- By default every client counts the same, as in FedAvg here; `weighting=size` is the paper's mean.
- A client may take the gradient of a mini-batch (`batch`); in the paper it takes all its samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Cluster, Size, Update
from coterie.core.layout import keeps_statistics
from coterie.core.local_training import GradientSettings, weighting_setting
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one cluster
    gradient: Update  # [m, d] g_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FedSGD(GradientSettings):
    """One model for all: clients send a gradient, the server makes the step."""

    weighting: str = weighting_setting()

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        if keeps_statistics(start.task.module):
            raise SettingError(
                "FedSGD cannot train a network with batch normalisation, whose running statistics "
                "have no gradient; FedAvg with steps=1 can"
            )
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, updates={"gradient": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.differentiate, fold=fold, model=state.model)
        model = state.model - self.rate(clients.round) * up.pooled_mean("gradient")
        return State(model), Info(ids, up.cluster, 1, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client(fold=ByCluster)
    def differentiate(self, cohort: Cohort, model: Tensor) -> Upload:
        model = model.expand(len(cohort), -1)
        gradient = self.client_gradient(cohort, model)
        return Upload(torch.zeros_like(cohort.ids), gradient, cohort.size)
