"""FedPRC: FeSEM that leaves outliers out of the means, found by their local outlier factor.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, chapter 5,
"Personalized federated learning with robust clustering". Algorithm 4, with the letters of the
thesis:

    start:        w_i = LocalUpdate(w), one random model w for all
                  the clients with LOF_n(w_i) > threshold are outliers
                  c_1, ..., c_K = k-means (k-means++ draws) of the others
    for t = 0, ..., T - 1:
        client i: w_i = LocalUpdate(c_k), k the cluster of i
        E step:   the cluster of i is argmin_k |w_i - c_k|
        LOF step: the clients with LOF_n(w_i - c_k) > threshold, c_k being what i was sent, are
                  outliers
        M step:   c_k = mean of w_i over the clients of cluster k that are no outliers

LOF_n is the local outlier factor (5.6): how much denser the n nearest neighbours of a point lie
than the point itself.

Differences from the thesis
- Outliers leave before the k-means of the start. Algorithm 4 clusters first (`order=printed`): far
  outliers then take centres of their own, which no later step gives back.
- (5.7c) calls a client an outlier if its factor is above 1, which is about half of all clients that
  are none (and as printed keeps the outliers and not the others). The threshold is 2: factors
  compare with the median distance, and where clients differ the honest ones reach 1.5.
- The thesis does not say what n is. It must lie between the numbers of outliers and of others: half
  of the clients that answered, unless `neighbours` says another number.
- The factors are those of the updates w_i - c_k. The thesis takes the models (`lof=models`), among
  which distances between clusters hide an update that is ten times too long.
- The last step, fine-tuning of a model for each client, is a setting of every run (`finetune`).
- Only the clients that answer in a round are clustered. Others keep their cluster. A cluster that
  has only outliers keeps its centre. An outlier is served the centre it is nearest to.
- A client without a cluster takes the centre with the lowest loss (section 4.3.1), then trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
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
from coterie.core.fields import Model, Size
from coterie.core.local_training import weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import above, at_least, at_most_clients, one_of
from coterie.starts import PANEL
from coterie.vectors.folds import ByCluster, NearestCentre
from coterie.vectors.outlier_factor import OUTLIER, outlier_factors


class State(NamedTuple):
    models: Tensor  # [k, d] centres c_k
    cluster: Tensor  # [m] the cluster of each client, -1 if unknown
    excluded: Tensor  # [m] whether a client was an outlier when it last took part


class Upload(NamedTuple):
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FedPRC(CentreSettings):
    """The server clusters the clients' models without outliers, found by local outlier factors."""

    sample: int = first_sample_setting()
    threshold: float = setting(
        OUTLIER, "a client with a larger outlier factor is left out", above(0)
    )
    neighbours: int = setting(
        0, "neighbours n of the factor; 0: half of the clients that answered", at_least(0)
    )
    lof: str = setting(
        "updates", "what outlier factors are of; models: as printed", one_of("updates", "models")
    )
    order: str = setting(
        "screened",
        "the start; screened: outliers leave, then k-means; printed: k-means, then they leave",
        one_of("screened", "printed"),
    )
    weighting: str = weighting_setting()

    traits: ClassVar[Traits] = Traits(clusters="k", models="models", averages=False)

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        how = FirstClustering(
            self.k,
            self.part,
            self.tries,
            self.sample,
            inliers=self.inliers,
            outliers_first=self.order == "screened",
        )
        clients = start.sample(0, at_least=PANEL * self.k)
        found = how.find(self.fit_part, clients, start.models(1)[0], start.seed)
        return State(*found, excluded=torch.zeros(start.clients, dtype=torch.bool))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        sent = {"model": Each(state.models, cluster)}
        ids, up = clients.run(self.train, model=sent["model"])
        if not len(ids):
            return state, Info(ids, ids, self.k)
        clustered = clustered_part(clients.task.layout, self.part)
        centres = clustered.parts(state.models)[0]
        expectation = NearestCentre("model", centres, clustered.part)
        near = expectation.clusters(ids, up, sent)
        w = clustered.parts(up.model)[0]
        inlier = self.inliers(w - centres[cluster[ids]] if self.lof == "updates" else w)
        by_size = self.weighting == "size"
        fold = ByCluster(self.k, {"model": "model"}, by_size=by_size, assign=expectation)
        kept = Upload(*(field[inlier] for field in up))
        means = fold.finish(fold.add(fold.start(), ids[inlier], kept, sent), sent)
        after = State(
            models=means.mean("model"),
            cluster=state.cluster.index_put((ids,), near),
            excluded=state.excluded.index_put((ids,), ~inlier),
        )
        return after, Info(ids, near, self.k, excluded=ids[~inlier])

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    def inliers(self, points: Tensor) -> Tensor:
        """Which clients are no outliers [a], by their models or updates [a, p]."""
        return outlier_factors(points, self.neighbours) <= self.threshold

    fit_part = first_centres.fit_part
    choose = steps.choose

    @on_client(origins={"model": "model"})
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(self.local_update(cohort, model), cohort.size)
