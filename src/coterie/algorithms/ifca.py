"""IFCA: the Iterative Federated Clustering Algorithm.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran: An Efficient Framework for Clustered Federated Learning,
NeurIPS 2020, https://arxiv.org/abs/2006.04088. Algorithm 1, with the letters of the paper:

    for t = 0, ..., T - 1:
        server:   broadcast theta_1, ..., theta_k to the participating clients M_t
        client i: j^ = argmin_j F_i(theta_j)
                  option I:   g_i = gradient of F_i at theta_j^
                  option II:  theta_i = LocalUpdate(theta_j^, gamma, tau)
        server:   option I:   theta_j = theta_j - gamma/m sum of g_i over the clients with j^ = j
                  option II:  theta_j = mean of theta_i over the clients with j^ = j

Section 4.1 adds weight sharing (a trunk common to all clusters, IFCA on the head only) and the
stable-identity broadcast (once identities rest, each client is sent only its own model). The
theorems of section 5 are about fresh samples in every round (`resample`, core/resampling.py):
F_i of line j^ and that of g_i or LocalUpdate are then over two parts that no other round sees.

Differences from the paper
- The default start is `farthest`, not k random models (`start=random`): see `ifca_start.py`. Where
  clients may attack it is `greedy`.
- A cluster that nobody chose keeps its model; the paper leaves 0/0 open.
- m of option I are all clients, whoever answers, as in Algorithm 1. With `weighting=size` a client
  counts as many times as its n_i is the mean of those who answered.
- A round that nobody answers changes nothing, and is no round of rest for the stable identities.
- The authors' FEMNIST code shares a trunk that was trained before and is frozen (`share=frozen`);
  the paper's text trains it jointly (`share=joint`). Both are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import ifca_start, steps
from coterie.algorithms.stable_identities import StableIdentities
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size, Update
from coterie.core.local_scores import BestModel
from coterie.core.local_training import weighting_setting
from coterie.core.resampling import Resampling
from coterie.core.settings import setting
from coterie.core.shared_trunk import SharedTrunk
from coterie.core.task import Task
from coterie.core.validate import at_least, one_of
from coterie.starts import StartSettings
from coterie.vectors.cluster_sums import ClusterSums
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    models: Tensor  # [k, p] theta: what each cluster has of its own (p = d without sharing)
    trunk: Tensor  # [d - p] what all clusters share
    cluster: Tensor  # [m] last known identity of each client, -1 if unknown
    stable: Tensor  # [] rounds since an identity changed


class Upload(NamedTuple):
    cluster: Cluster  # [m] identity j^
    model: Model  # [m, p] theta_i
    trunk: Model  # [m, d - p] the shared trunk, if it is trained
    size: Size  # [m] samples n_i that it descended on


class Gradients(NamedTuple):
    cluster: Cluster  # [m] identity j^
    gradient: Update  # [m, p] g_i
    trunk: Update  # [m, d - p] that of the shared trunk, if it is trained
    size: Size  # [m] samples n_i of the gradient


@dataclass(frozen=True, kw_only=True)
class IFCA(StableIdentities, StartSettings, Resampling):
    """Clients choose the cluster model with the lowest loss on their data and train it on."""

    traits: ClassVar[Traits] = Traits(
        clusters="k",
        models="models",
        withholds=True,
        made_of={"ifca": ("k", "average", "share", "stable", "resample"), "fedavg": ()},
    )

    k: int = setting(2, "clusters", at_least(1))
    average: str = setting(
        "models", "what the server averages: option II, option I", one_of("models", "gradients")
    )
    weighting: str = weighting_setting()
    share: str = setting("none", "trunk common to all clusters", one_of("none", "joint", "frozen"))
    head: str = setting("head", "the part that each cluster has of its own when a trunk is shared")
    trunk_rounds: int = setting(100, "rounds of FedAvg that train a frozen trunk", at_least(0))
    start_distance: float = setting(
        0.25, "distance of near-truth from the truth, in separations", at_least(0), added=True
    )

    def init(self, start: Start) -> State:
        ifca_start.check_combination(self, start)
        trunk, unknown = ifca_start.initial_trunk(self, start), torch.full((start.clients,), -1)
        state = State(torch.empty(0), trunk, unknown, torch.tensor(0))
        return state._replace(models=ifca_start.initial_models(self, state, start))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        ids, up = self._answers(state, clients)
        if len(ids) == 0:
            return state, Info(ids, up.cluster, self.k)
        trunk = state.trunk
        if self.average == "gradients":
            step = self.rate(clients.round) * len(ids) / (clients.population * up.weight)
            models = state.models - step * up.sum("gradient")
            if self.share == "joint":
                trunk = trunk - step * up.sum("trunk").sum(0)
        else:
            models = up.mean("model")
            if self.share == "joint":
                trunk = up.pooled_mean("trunk")
        after = state._replace(models=models, trunk=trunk)
        info = Info(ids, up.cluster, self.k, weights=up.weights)
        return self.note_identities(after, ids, up.cluster), info

    def serve(self, state: State, clients: Clients) -> Serving:
        models = self.sharing(clients.task).whole(state.models, state.trunk)
        sent = {"models": state.models, "trunk": state.trunk}
        return steps.serve_by_choice(self.choose, models, clients, **sent)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> Upload:
        whole = self.sharing(cohort.task).whole(models, trunk)
        return self._train(cohort, self.choose_model(cohort, whole))

    @on_client(fold=ByCluster)
    def train_own(self, cohort: Cohort, model: Tensor, trunk: Tensor, cluster: Tensor) -> Upload:
        whole = self.sharing(cohort.task).whole(model, trunk)
        return self._train(cohort, BestModel(cluster, whole))

    @on_client(fold=ByCluster)
    def differentiate(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> Gradients:
        whole = self.sharing(cohort.task).whole(models, trunk)
        return self._differentiate(cohort, self.choose_model(cohort, whole))

    @on_client(fold=ByCluster)
    def differentiate_own(
        self, cohort: Cohort, model: Tensor, trunk: Tensor, cluster: Tensor
    ) -> Gradients:
        whole = self.sharing(cohort.task).whole(model, trunk)
        return self._differentiate(cohort, BestModel(cluster, whole))

    @on_client
    def choose(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> steps.Choice:
        return steps.choose(self, cohort, self.sharing(cohort.task).whole(models, trunk))

    @on_client
    def losses(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> steps.Losses:
        return steps.losses(self, cohort, self.sharing(cohort.task).whole(models, trunk))

    @on_client(origins={"model": "model"})
    def train_alone(self, cohort: Cohort, model: Tensor, trunk: Tensor) -> steps.OwnModel:
        return ifca_start.train_with_trunk(self, cohort, model, trunk)

    def sharing(self, task: Task) -> SharedTrunk:
        """What of a model each cluster has of its own: all of it, or the head."""
        own = task.layout.part("all" if self.share == "none" else self.head)
        return SharedTrunk(own, frozen=self.share == "frozen")

    def _train(self, cohort: Cohort, best: BestModel) -> Upload:
        """Option II: what clients send that train the whole model of their cluster."""
        sharing, cohort = self.sharing(cohort.task), self.descent_samples(cohort)
        trained = self.local_update(cohort, best.model, part=sharing.moves)
        return Upload(best.cluster, *sharing.moving_parts(trained), cohort.size)

    def _differentiate(self, cohort: Cohort, best: BestModel) -> Gradients:
        """Option I: what clients send of the gradient at the whole model of their cluster."""
        sharing, cohort = self.sharing(cohort.task), self.descent_samples(cohort)
        gradient = self.client_gradient(cohort, best.model)
        return Gradients(best.cluster, *sharing.moving_parts(gradient), cohort.size)

    def _answers(self, state: State, clients: Clients) -> tuple[Tensor, ClusterSums]:
        """Who answered, and the sums of what they sent; identities that rest are not chosen."""
        rest, gradients = self.identities_rest(state, clients.ids), self.average == "gradients"
        shared = {"trunk": "trunk"} if self.share == "joint" else {}
        changed = {"gradient" if gradients else "model": "model" if rest else "models", **shared}
        models, updates = ({}, changed) if gradients else (changed, {})
        fold = ByCluster(self.k, models, updates, by_size=self.weighting == "size")
        if not rest:
            step = self.differentiate if gradients else self.train
            return clients.run(step, fold=fold, models=state.models, trunk=state.trunk)
        own = self.differentiate_own if gradients else self.train_own
        model, cluster = Each(state.models, state.cluster), Each(state.cluster)
        return clients.run(own, fold=fold, model=model, trunk=state.trunk, cluster=cluster)
