"""TKM: trimmed k-means of the clients' models, the thesis' robust baseline.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, sections 3.6
and 5.5, "Robust (TKM)", after A. Ghosh, J. Hong, D. Yin, K. Ramchandran: Robust Federated Learning
in a Heterogeneous Environment, 2019, https://arxiv.org/abs/1906.06629, which clusters the models of
clients by Lloyd's algorithm with trimmed means.

    start:        W_i = LocalUpdate(W), one random model W for all
                  W~_1, ..., W~_K = trimmed k-means of the W_i, 8 iterations
    for t = 0, ..., T - 1:
        client i: W_i = LocalUpdate(W~_k), k the cluster of i
        server:   one iteration of trimmed k-means:
                  the cluster of i is argmin_k |W_i - W~_k|
                  W~_k = trimmed mean of W_i over the clients of cluster k

A trimmed mean leaves out the share beta = 5 % of the clients with the largest and with the smallest
value, in every coordinate anew.

Differences from the thesis
- The thesis refers to its appendix for this baseline; beta and the iterations are those of its
  author's code.
- The first clustering is the tightest of 20, as in FeSEM.
- Only the clients that answer in a round are clustered. Others keep their cluster. A cluster with
  nobody in it keeps its centre.
- A client without a cluster takes the centre with the lowest loss, then trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from coterie.algorithms import first_centres, steps
from coterie.algorithms.first_centres import (
    CentreSettings,
    FirstClustering,
    clustered_part,
    first_sample_setting,
)
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Model
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients
from coterie.starts import PANEL
from coterie.vectors.kmeans import centroids, nearest_centre


class State(NamedTuple):
    models: Tensor  # [k, d] centres W~
    cluster: Tensor  # [m] the cluster of each client, -1 if unknown


class Upload(NamedTuple):
    model: Model  # [m, d] W_i


@dataclass(frozen=True, kw_only=True)
class TKM(CentreSettings):
    """The server clusters the clients' models by trimmed k-means, an iteration in every round."""

    sample: int = first_sample_setting()
    trim: float = setting(0.05, "share beta that means leave out at each end", at_least(0))
    iterations: int = setting(8, "iterations of k-means before the first round", at_least(1))

    traits: ClassVar[Traits] = Traits(clusters="k", models="models", averages=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trim >= 0.5:
            raise SettingError(f"`trim` of TKM must be below 0.5, got {self.trim:g}")

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        how = FirstClustering(
            self.k, self.part, self.tries, self.sample, self.trim, self.iterations
        )
        clients = start.sample(0, at_least=PANEL * self.k)
        return State(*how.find(self.fit_part, clients, start.models(1)[0], start.seed))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        ids, up = clients.run(self.train, model=Each(state.models, cluster))
        if not len(ids):
            return state, Info(ids, ids, self.k)
        clustered = clustered_part(clients.task.layout, self.part)
        near = nearest_centre(*(clustered.parts(w)[0] for w in (up.model, state.models)))
        models = centroids(up.model, near, state.models, self.trim)
        after = State(models, state.cluster.index_put((ids,), near))
        return after, Info(ids, near, self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    fit_part = first_centres.fit_part
    choose = steps.choose

    @on_client(origins={"model": "model"})
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(self.local_update(cohort, model))
