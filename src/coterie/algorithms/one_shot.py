"""One-shot: cluster the clients' own models once, then FedAvg inside the clusters.

A. Ghosh, J. Hong, D. Yin, K. Ramchandran: Robust Federated Learning in a Heterogeneous Environment,
2019, https://arxiv.org/abs/1906.06629. The three stages:

    client i: w^_i = argmin F_i(w), the local empirical risk minimiser
    server:   C_1, ..., C_K = (trimmed) K-means of the w^_i
    for t = 0, ..., T - 1, inside each cluster:
        client i: w_i = LocalUpdate(w_j), j the cluster of i
        server:   w_j = mean of w_i over the participating clients of C_j

Differences from the paper
- The minimiser is approximated: `fits` local trainings from one random model that all share.
- The last stage is the plain mean, not the authors' Byzantine-robust gradient descent.
- `trim` takes trimmed means in Lloyd's algorithm, coordinate by coordinate; it is off by default.
- A cluster's model begins at its centre; the paper leaves that open.
- A client whose model did not arrive joins the cluster with the lowest loss when it first takes
  part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from coterie.algorithms import steps
from coterie.algorithms.first_centres import FirstClustering, Fit, clustered_part, fit_origin
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Model, Size
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients, fraction
from coterie.vectors.folds import ByCluster, RowSent


class State(NamedTuple):
    models: Tensor  # [k, d] w_j
    cluster: Tensor  # [m] the cluster of each client, -1 if unknown


class Upload(NamedTuple):
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class OneShot(LocalTraining):
    """Clients train alone, their models are clustered once, then each cluster has its FedAvg."""

    traits: ClassVar[Traits] = Traits(clusters="k", models="models")

    k: int = setting(2, "clusters K", at_least(1))
    fits: int = setting(10, "local trainings before the clustering, as in rounds", at_least(1))
    part: str = setting("all", "parameters that are clustered: all, head, body or a layer")
    trim: float = setting(0.0, "share that means leave out at each end; 0: k-means", at_least(0))
    tries: int = setting(20, "starts of k-means, of which the tightest is kept", at_least(1))
    sample: int = setting(500, "clients k-means sees; others join the nearest centre", at_least(1))
    kept: float = setting(1.0, "share of a client's samples it uses; others are held out", fraction)
    weighting: str = weighting_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trim >= 0.5:
            raise SettingError(f"`trim` of OneShot must be below 0.5, got {self.trim:g}")

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        return self.cluster_once(start.all_clients(), start.models(1)[0], start.seed)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        k = len(state.models)
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        by_size = self.weighting == "size"
        fold = ByCluster(k, {"model": "model"}, by_size=by_size, assign=RowSent("model"))
        ids, up = clients.run(self.train, fold=fold, model=Each(state.models, cluster))
        assert up.cluster is not None  # the server assigns them
        known = state.cluster.index_put((ids,), up.cluster)
        return State(up.mean("model"), known), Info(ids, up.cluster, k)

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    def cluster_once(self, clients: Clients, model: Tensor, seed: int) -> State:
        """k models and the clusters of `clients`, from what they make of one common model [d]."""
        how = FirstClustering(self.k, self.part, self.tries, self.sample, self.trim)
        return State(*how.find(self.fit, clients, model, seed))

    choose = steps.choose

    @on_client(origins={"model": fit_origin})
    def fit(self, cohort: Cohort, model: Tensor) -> Fit:
        cohort = self.training_samples(cohort)
        w = model.expand(len(cohort), -1)
        for _ in range(self.fits):
            w = self.local_update(cohort, w)
        return Fit(clustered_part(cohort.task.layout, self.part).parts(w)[0], cohort.size)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        cohort = self.training_samples(cohort)
        return Upload(self.local_update(cohort, model), cohort.size)

    def training_samples(self, cohort: Cohort) -> Cohort:
        return cohort.training_part(self.kept)
