"""Oracle: the true clusters are known, and each has its own FedAvg.

Not a method but a yardstick: what clustering without a mistake would give.

    for t = 0, ..., T - 1:
        server:   send w_c(i) to client i, c(i) its true cluster
        client i: w_i = LocalUpdate(w_c(i))
        server:   w_j = mean of w_i over the clients with c(i) = j

A client that never trained has no true cluster here; it takes the model with the lowest loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from coterie.algorithms import steps
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import DataError
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    models: Tensor  # [k, d] w_j
    cluster: Tensor  # [m] c(i)


class Upload(NamedTuple):
    cluster: Cluster  # [m] c(i)
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class Oracle(LocalTraining):
    """FedAvg inside the true clusters, which no real method knows."""

    traits: ClassVar[Traits] = Traits(models="models")

    weighting: str = weighting_setting()

    def init(self, start: Start) -> State:
        if start.truth is None:
            raise DataError("oracle needs a federation whose true clusters are known")
        return State(start.models(int(start.truth.max()) + 1, distinct=False), start.truth)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        k = len(state.models)
        ids, up = clients.run(
            self.train,
            fold=ByCluster(k, {"model": "model"}, by_size=self.weighting == "size"),
            model=Each(state.models, state.cluster),
            cluster=Each(state.cluster),
        )
        return State(up.mean("model"), state.cluster), Info(ids, up.cluster, k)

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    choose = steps.choose

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor, cluster: Tensor) -> Upload:
        return Upload(cluster, self.local_update(cohort, model), cohort.size)
