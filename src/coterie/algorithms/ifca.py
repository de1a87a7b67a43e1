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
stable-identity broadcast (once identities rest, each client is sent only its own model).

Differences from the paper
- The default start is `farthest`, not k random models (`start=random`): see docs/ifca.md.
- A cluster that nobody chose keeps its model; the paper leaves 0/0 open.
- The authors' FEMNIST code shares a trunk that was trained before and is frozen (`share=frozen`);
  the paper's text trains it jointly (`share=joint`). Both are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie import starts
from coterie.algorithms import steps
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.steps import Choice, Losses
from coterie.core.algorithm import Info, Serving, Start
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.layout import Layout, join, keeps_statistics, split
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients, one_of
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    models: Tensor  # [k, p] theta: what each cluster has of its own (p = d without sharing)
    trunk: Tensor  # [d - p] what all clusters share
    cluster: Tensor  # [m] last known identity of each client, -1 if unknown
    stable: Tensor  # [] rounds since an identity changed


class Upload(NamedTuple):
    cluster: Tensor  # [m] identity j^
    model: Tensor  # [m, p] theta_i (option II) or g_i (option I)
    trunk: Tensor  # [m, d - p] the same for the shared trunk, if it is trained
    size: Tensor  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class IFCA(LocalTraining):
    """Clients choose the cluster model with the lowest loss on their data and train it on."""

    k: int = setting(2, "clusters")
    average: str = setting(
        "models", "what the server averages: models (option II) or gradients (option I)"
    )
    weighting: str = setting("equal", "weight of a client in a mean: equal, or its size")
    share: str = setting(
        "none", "trunk common to all clusters: none, joint (trained by all) or frozen"
    )
    head: str = setting("head", "the part that each cluster has of its own when a trunk is shared")
    trunk_rounds: int = setting(100, "rounds of FedAvg that train a frozen trunk")
    stable: int = setting(
        0, "rounds of rest after which clients get only their own model; 0: never"
    )
    recheck: int = setting(10, "rounds after which identities are estimated again all the same")
    start: str = setting("farthest", "start policy: random, restarts, reject, warm or farthest")
    tries: int = setting(10, "draws of k models that restarts and reject may make")
    start_rounds: int = setting(10, "rounds of training in restarts, warm and farthest")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "k", 1)
        one_of(self, "average", ["models", "gradients"])
        one_of(self, "weighting", ["equal", "size"])
        one_of(self, "share", ["none", "joint", "frozen"])
        at_least(self, "trunk_rounds", 0)
        at_least(self, "stable", 0)
        at_least(self, "recheck", 1)
        one_of(self, "start", starts.POLICIES)
        at_least(self, "tries", 1)
        at_least(self, "start_rounds", 1)

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        if self.average == "gradients" and keeps_statistics(start.task.module):
            raise SettingError(
                "`average` of IFCA must be models for a network with batch normalisation, whose "
                "running statistics have no gradient, got gradients"
            )
        own = self._own(start.task.layout)
        trunk = split(own, self._trunk(start))[1]
        trial = starts.Trial(
            k=self.k,
            start=start,
            draw=lambda attempt: split(own, start.models(self.k, attempt))[0],
            losses=partial(steps.ask_losses, self.losses, trunk=trunk),
            advance=lambda models, clients: self._advance(models, trunk, clients, self.average),
            teach=lambda model, client: self._advance(model, trunk, client, "models"),
        )
        models = starts.POLICIES[self.start](trial, self.tries, self.start_rounds)
        return State(models, trunk, torch.full((start.clients,), -1), torch.tensor(0))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(self.k, by_size=self.weighting == "size")
        if self._identities_rest(state, clients):
            ids, up = clients.run(
                self.train_own,
                fold=fold,
                model=Each(state.models, state.cluster),
                trunk=state.trunk,
                cluster=Each(state.cluster),
            )
        else:
            ids, up = clients.run(self.train, fold=fold, models=state.models, trunk=state.trunk)

        trunk = state.trunk
        if self.average == "gradients":
            step = self.rate(clients.round)
            step /= clients.population if self.weighting == "equal" else up.weight
            models = state.models - step * up.sum("model")
            if self.share == "joint":
                trunk = state.trunk - step * up.sum("trunk").sum(0)
        else:
            models = up.mean("model", empty=state.models)
            if self.share == "joint":
                trunk = up.pooled_mean("trunk", empty=state.trunk)

        changed = bool((state.cluster[ids] != up.cluster).any())
        stable = torch.zeros_like(state.stable) if changed else state.stable + 1
        cluster = state.cluster.index_put((ids,), up.cluster)
        return State(models, trunk, cluster, stable), Info(ids, up.cluster, self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        ids, up = clients.run(self.choose, models=state.models, trunk=state.trunk)
        models = join(self._own(clients.task.layout), state.models, state.trunk)
        return Serving(models, ids, up.cluster)

    @on_client
    def train(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> Upload:
        chosen = cohort.choose(join(self._own(cohort.task.layout), models, trunk))
        return self._trained(cohort, chosen.model, chosen.cluster)

    @on_client
    def train_own(self, cohort: Cohort, model: Tensor, trunk: Tensor, cluster: Tensor) -> Upload:
        return self._trained(cohort, join(self._own(cohort.task.layout), model, trunk), cluster)

    def _trained(self, cohort: Cohort, whole: Tensor, cluster: Tensor) -> Upload:
        """What clients send that train whole models [m, d] of their clusters."""
        own = self._own(cohort.task.layout)
        if self.average == "gradients":
            result = cohort.gradient(whole, batch=self.batch, weight_decay=self.weight_decay)
        else:
            result = self.local_update(cohort, whole, only=own if self.share == "frozen" else None)
        model, trunk = split(own, result)
        if self.share == "frozen":
            trunk = trunk[:, :0]
        return Upload(cluster, model, trunk, cohort.size)

    @on_client
    def choose(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> Choice:
        return steps.choose(self, cohort, join(self._own(cohort.task.layout), models, trunk))

    @on_client
    def losses(self, cohort: Cohort, models: Tensor, trunk: Tensor) -> Losses:
        return steps.losses(self, cohort, join(self._own(cohort.task.layout), models, trunk))

    def _identities_rest(self, state: State, clients: Clients) -> bool:
        """Whether each client may be sent only the model of the cluster it was last in."""
        if self.stable == 0 or int(state.stable) < self.stable:
            return False
        rests_for = int(state.stable) - self.stable
        known = bool((state.cluster[clients.ids] >= 0).all())
        return known and rests_for % (self.recheck + 1) != self.recheck

    def _own(self, layout: Layout) -> Tensor:
        """The coordinates that each cluster has of its own, a mask [d]."""
        return layout.part("all" if self.share == "none" else self.head)

    def _trunk(self, start: Start) -> Tensor:
        """A whole model [d] whose trunk the clusters begin with."""
        if self.share != "frozen":
            return start.models(1)[0]
        fedavg = FedAvg(**self.settings_by_name(), weighting=self.weighting)
        return fedavg.model_after(self.trunk_rounds, start)

    def _advance(self, models: Tensor, trunk: Tensor, clients: Clients, average: str) -> Tensor:
        """The models after a round before the first, in which the trunk is held fixed."""
        share = "none" if self.share == "none" else "frozen"
        plain = replace(self, k=len(models), average=average, share=share, stable=0)
        unknown = torch.full((clients.population,), -1)
        state, _ = plain.round(State(models, trunk, unknown, torch.tensor(0)), clients)
        return state.models
