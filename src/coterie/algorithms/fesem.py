"""FeSEM: Federated Stochastic Expectation Maximization, or multi-center federated learning.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, chapter 3;
M. Xie, G. Long, T. Shen, T. Zhou, X. Wang, J. Jiang, C. Zhang: Multi-Center Federated Learning,
2020, https://arxiv.org/abs/2005.01026. Algorithms 1 and 2, with the letters of the thesis:

    start:        W_i = LocalUpdate(W), one random model W for all
                  W~_1, ..., W~_K = the tightest of 20 clusterings of the W_i
    for t = 0, ..., T - 1:
        client i: W_i = LocalUpdate(W~_k), k the cluster of i, on
                  L(W_i) + lambda/2 Dist(W_i, W~_k)                                  (3.8)
        E step:   the cluster of i is argmin_k Dist(W_i, W~_k)                       (3.9)
        M step:   W~_k = mean of W_i over the clients of cluster k                   (3.10)

Dist is the squared Euclidean distance over all parameters or over a named part of them. The thesis
begins its loop with the E step; the order of the steps is the same, and cut where it is here the
server holds no client's model from one round to the next.

Differences from the thesis
- Only the clients that answer in a round enter the means. Others keep their cluster. A cluster with
  nobody in it keeps its centre.
- A client without a cluster takes the centre with the lowest loss (section 4.3.1), then trains.
- (3.8) weights a client's loss by n_i / sum n and the distance by 1/m, which for clients of equal
  size is what is written above; here `pull` is the same for all, whatever their size.
- `recluster=r` makes the E step every r rounds, the first included; the thesis makes it in each.
- Clients are served by the centre of their cluster. (3.6) has a model W_i for each client besides:
  `serves=own` gives it that, trained from the centre once more, on the client's own samples.
- `warm_rounds` trains the common model by FedAvg before clients are clustered; the thesis clusters
  at once.
- K is chosen (`k=0`) by the loss on held-out samples: the smallest K that is not clearly worse than
  the best. Section 3.4.2 leaves the criterion open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import steps
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.first_centres import clustered_part, sample_clients
from coterie.algorithms.one_shot import OneShot
from coterie.algorithms.steps import HeldOutLoss, held_out_loss, with_newcomers
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Model, Size
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients, fraction, one_of
from coterie.starts import PANEL
from coterie.vectors.folds import Assignment, ByCluster, NearestCentre, RowSent

KEPT = 0.8  # share of a client's samples to train on while K is chosen


class State(NamedTuple):
    models: Tensor  # [k, d] centres W~
    cluster: Tensor  # [m] the cluster of each client, -1 if unknown
    rounds: Tensor  # [] rounds so far


class Upload(NamedTuple):
    model: Model  # [m, d] W_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FeSEM(LocalTraining):
    """The server clusters the clients' models; members of a cluster train on from their mean."""

    traits: ClassVar[Traits] = Traits(
        clusters="k",
        models="models",
        made_of={
            "fesem": ("k", "kept"),
            "fedavg": ("lr",),
            "one-shot": ("k", "fits", "weighting", "kept"),
        },
    )

    k: int = setting(2, "clusters K; 0: chosen on a sample of clients", at_least(0))
    pull: float = setting(0.0, "strength lambda of the local pull to the centre", at_least(0))
    part: str = setting("all", "parameters that the distance is over: all, head, body or a layer")
    weighting: str = weighting_setting()
    recluster: int = setting(1, "rounds from one E step to the next", at_least(1))
    warm_rounds: int = setting(0, "rounds of FedAvg before clients are clustered", at_least(0))
    warm_lr: float = setting(0.0, "step size of these rounds; 0: lr", at_least(0))
    tries: int = setting(20, "clusterings at the start, of which the tightest is kept", at_least(1))
    sample: int = setting(100, "clients by whom the first centres and k are found", at_least(1))
    k_most: int = setting(8, "largest k that is tried when it is to be chosen", at_least(1))
    k_rounds: int = setting(3, "rounds for which each k is tried", at_least(1))
    kept: float = setting(1.0, "share of a client's samples it uses; others are held out", fraction)
    serves: str = setting(
        "centre", "what a client uses; own: W_i, trained from the centre", one_of("centre", "own")
    )

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        model = self._common_model(start)
        k = self.k
        if k == 0:
            panel = sample_clients(start.sample(0, at_least=self.sample), self.sample, start.seed)
            k = self.best_k(panel, model, start.seed)
        return self.first_centres(k, start.sample(0, at_least=PANEL * k), model, start.seed)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        k = len(state.models)
        clients, cluster = with_newcomers(self.choose, state.models, state.cluster, clients)
        expectation: Assignment = RowSent("model")
        if clients.round % self.recluster == 0:
            clustered = clustered_part(clients.task.layout, self.part)
            centres = clustered.parts(state.models)[0]
            expectation = NearestCentre("model", centres, clustered.part)
        by_size = self.weighting == "size"
        fold = ByCluster(k, {"model": "model"}, by_size=by_size, assign=expectation)
        ids, up = clients.run(self.train, fold=fold, model=Each(state.models, cluster))
        assert up.cluster is not None  # the server assigns them
        known = state.cluster.index_put((ids,), up.cluster)
        after = State(up.mean("model"), known, state.rounds + 1)
        return after, Info(ids, up.cluster, k)

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = with_newcomers(self.choose, state.models, state.cluster, clients)
        own = partial(self.own, rounds=int(state.rounds)) if self.serves == "own" else None
        return Serving(state.models, clients.ids, cluster[clients.ids], adapt=own)

    choose = steps.choose

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        cohort = self.training_samples(cohort)
        return Upload(self._train(cohort, model, cohort.round), cohort.size)

    @on_client
    def own(self, cohort: Cohort, model: Tensor, rounds: int) -> Tensor:
        return self._train(self.training_samples(cohort), model, rounds)

    @on_client
    def judge(self, cohort: Cohort, model: Tensor) -> HeldOutLoss:
        return held_out_loss(cohort, self.kept, model)

    def training_samples(self, cohort: Cohort) -> Cohort:
        return cohort.training_part(self.kept)

    def _train(self, cohort: Cohort, centre: Tensor, round: int) -> Tensor:
        """Models [m, d] after local training from each client's centre, with the pull of (3.8)."""
        if not self.pull:
            return self.local_update(cohort, centre, round=round)
        part = clustered_part(cohort.task.layout, self.part).part
        strength = self.pull * part.to(centre.dtype)
        return self.local_update(cohort, centre, pull=strength, anchor=centre, round=round)

    def _common_model(self, start: Start) -> Tensor:
        """The model [d] that all clients train before they are clustered."""
        work = self.settings_by_name() | {"lr": self.warm_lr or self.lr}
        return FedAvg(**work, weighting=self.weighting).model_after(self.warm_rounds, start)

    def first_centres(self, k: int, clients: Clients, model: Tensor, seed: int) -> State:
        """The first centres: clusters of what clients make of one model [d] in a local training."""
        common = {name: getattr(self, name) for name in ("part", "tries", "sample", "kept")}
        once = OneShot(k=k, fits=1, **common, **self.settings_by_name())
        models, cluster = once.cluster_once(clients, model, seed)
        return State(models, cluster, torch.tensor(0))

    def best_k(self, clients: Clients, model: Tensor, seed: int) -> int:
        """The number of clusters that serves a few clients best, or nearly, after some rounds."""
        tried = min(self.k_most, len(clients.ids))
        losses = torch.full((tried, clients.population), torch.nan, dtype=torch.float64)
        for k in range(1, tried + 1):
            trial = replace(self, k=k, kept=KEPT)
            state = trial.first_centres(k, clients, model, seed)
            for _ in range(self.k_rounds):
                state, _ = trial.round(state, clients)
            members, cluster = with_newcomers(trial.choose, state.models, state.cluster, clients)
            ids, up = members.run(trial.judge, model=Each(state.models, cluster))
            if len(ids):
                losses[k - 1, ids] = up.loss.double()
        return smallest_good_k(losses)


def smallest_good_k(losses: Tensor) -> int:
    """The smallest K that is not clearly worse than the best; row K - 1 of `losses` [., m] is K's.

    Clearly is by more than the standard error of the mean difference over the clients that were
    judged under every K; the others are NaN.

    >>> smallest_good_k(torch.tensor([[5.0, 5.0, 5.0], [2.0, 1.0, 3.0], [1.0, 2.0, 2.9]]))
    2
    """
    losses = losses[:, ~losses.isnan().any(0)].clamp_max(1e9)  # a diverged model is only bad
    if losses.shape[1] < 2:
        return 1
    worse = losses - losses[losses.mean(1).argmin()]
    error = worse.std(1) / losses.shape[1] ** 0.5
    return int((worse.mean(1) <= error).nonzero()[0]) + 1
