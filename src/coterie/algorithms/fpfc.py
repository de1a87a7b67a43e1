"""FPFC: fusion penalised federated clustering.

X. Yu, Z. Liu, Y. Sun, W. Wang: Clustered Federated Learning for Heterogeneous Data, AAAI 2023;
long version https://arxiv.org/abs/2211.04218. Algorithm 1, with the letters of the paper:

    omega_i = zeta_i = omega^0, theta_ij = v_ij = 0
    for k = 0, ..., K - 1:
        server:   send zeta_i to the participating devices A_k
        device i: T times: omega_i -= alpha (grad f_i(omega_i) + rho (omega_i - zeta_i))
        server:   for the pairs with a device in A_k:
                      delta_ij = omega_i - omega_j + v_ij / rho
                      theta_ij = argmin g(|theta|) + rho/2 |theta - delta_ij|^2
                      v_ij = v_ij + rho (omega_i - omega_j - theta_ij)
                  zeta_i = mean over j of omega_j + theta_ij - v_ij / rho
    clusters: devices joined by pairs with |theta_ij| <= nu; the model of a cluster is the mean of
    its omega_i, weighted by n_i

g is the SCAD penalty, quadratic near 0. The server's line is in `vectors/fusion.py`.

Differences from the paper
- Lambda need not be given: by default it is chosen on a path of falling values, each begun where
  the one before ended, by how well models trained in its clusters serve samples that devices hold
  out; the rounds then begin with these models, trained on until they serve no better.
- Pairs with either device in A_k are updated, as in the authors' code; the text has `pairs=both`.
- Of a larger network a part may be fused (`part=head`); the rest is averaged over everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import steps
from coterie.core.algorithm import Info, Serving, Start
from coterie.core.clients import Clients, Each, merge_answers, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.layout import Layout, join, split
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import above, at_least, between, one_of
from coterie.vectors import fusion
from coterie.vectors.folds import ByCluster
from coterie.vectors.fusion import Pairs, together


class State(NamedTuple):
    omega: Tensor  # [m, p] omega_i, the fused part of each device's model
    zeta: Tensor  # [m, p] zeta_i
    trunk: Tensor  # [d - p] what is not fused but common to all
    size: Tensor  # [m] samples n_i, 0 for a device that was never heard of
    lam: Tensor  # [] lambda
    pair: Tensor  # [q] the pairs that keep something, see `fusion.Pairs`
    delta: Tensor  # [q, p]
    norm: Tensor  # [q]
    scale: Tensor  # [q]


class Upload(NamedTuple):
    omega: Tensor  # [m, p] omega_i
    trunk: Tensor  # [m, d - p] the rest of the model
    size: Tensor  # [m] samples n_i


class Slope(NamedTuple):
    gradient: Tensor  # [m, p] grad f_i at omega^0


class Fitted(NamedTuple):
    cluster: Tensor  # [m]
    model: Tensor  # [m, d] model trained in the cluster, without fusion
    size: Tensor  # [m] samples n_i


class HeldOut(NamedTuple):
    loss: Tensor  # [m] mean loss on the samples held out


@dataclass(frozen=True, kw_only=True)
class FPFC(LocalTraining):
    """Devices keep models of their own, which a penalty on their differences draws together."""

    lam: float = setting(0.0, "strength of the fusion lambda; 0: chosen on a path")
    rho: float = setting(1.0, "strength of the pull towards zeta")
    nu: float = setting(0.1, "devices whose models differ by at most this are in one cluster")
    penalty: str = setting("scad", "penalty on differences: scad, or l1")
    a: float = setting(
        3.7, "where SCAD ends: models that differ by a lambda do not attract each other"
    )
    xi: float = setting(0.001, "below this difference SCAD is quadratic")
    part: str = setting("all", "the part of the model that is fused: all, head, or a layer's name")
    pairs: str = setting(
        "either", "pairs that a round updates: either of their devices took part, or both"
    )
    apart: int = setting(0, "rounds before anything is fused, for a lambda that is given")
    lambdas: int = setting(8, "values of lambda on the path")
    lam_least: float = setting(
        0.1, "the last of them, as a share of the first, which joins everybody"
    )
    path_rounds: int = setting(100, "rounds for each of them")
    stages: int = setting(
        40, "times path_rounds that models of the best clusters train on, at most"
    )
    hold: float = setting(0.2, "share of a device's samples that the path holds out to judge by")

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"lam": 0, "apart": 0, "stages": 0, "lambdas": 1, "path_rounds": 1}
        for name in least:
            at_least(self, name, least[name])
        for positive in ("rho", "nu", "xi"):
            above(self, positive, 0)
        one_of(self, "penalty", ["scad", "l1"])
        one_of(self, "pairs", ["either", "both"])
        above(self, "a", 1 + 1 / self.rho)
        if self.apart and not self.lam:
            raise SettingError(f"`apart` of FPFC needs a `lam` of your own, got {self.apart} and 0")
        between(self, "lam_least", 0, 1)
        between(self, "hold", 0, 1)

    def init(self, start: Start) -> State:
        own, trunk = split(start.task.layout.part(self.part), start.models(1)[0])
        omega = own.repeat(start.clients, 1)
        size = torch.zeros(start.clients, dtype=torch.long)
        state = State(omega, omega, trunk, size, omega.new_tensor(self.lam), *together(omega))
        return state if self.lam else self._warmed_up(state, start)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        lam = 0.0 if clients.round < self.apart else float(state.lam)
        ids, state = self._advance(state, clients, lam, torch.tensor(1.0))
        cluster = self._clusters(state)
        return state, Info(ids, cluster[ids], int(cluster.max()) + 1)

    def serve(self, state: State, clients: Clients) -> Serving:
        cluster = self._clusters(state)
        models = self._models(state, cluster, clients.task.layout)
        heard = torch.where(state.size > 0, cluster, -1)
        clients, cluster = steps.with_newcomers(self.choose, models, heard, clients)
        return Serving(models, clients.ids, cluster[clients.ids])

    @on_client
    def begin(
        self, cohort: Cohort, omega: Tensor, zeta: Tensor, trunk: Tensor, share: Tensor
    ) -> Upload:
        cohort.keep("omega", omega)
        return self.train(cohort, zeta, trunk, share)

    @on_client
    def train(self, cohort: Cohort, zeta: Tensor, trunk: Tensor, share: Tensor) -> Upload:
        part = cohort.task.layout.part(self.part)
        begin, anchor = join(part, cohort.recall("omega"), trunk), join(part, zeta, trunk)
        used = cohort.using(float(share))
        end = self.local_update(used, begin, pull=self.rho * part, anchor=anchor)
        omega, trunk = split(part, end)
        cohort.keep("omega", omega)
        return Upload(omega, trunk, cohort.size)

    choose = steps.choose

    @on_client
    def slope(self, cohort: Cohort, model: Tensor) -> Slope:
        gradient = cohort.gradient(model.expand(len(cohort), -1))
        return Slope(gradient[:, cohort.task.layout.part(self.part)])

    @on_client
    def fit(self, cohort: Cohort, model: Tensor, cluster: Tensor) -> Fitted:
        kept = cohort.using(1 - self.hold)
        return Fitted(cluster, self.local_update(kept, model), cohort.size)

    @on_client
    def judge(self, cohort: Cohort, model: Tensor) -> HeldOut:
        held_out = cohort.split(1 - self.hold)[1]
        return HeldOut(held_out.loss(model[:, None])[:, 0])

    def _advance(
        self, state: State, clients: Clients, lam: float, share: Tensor
    ) -> tuple[Tensor, State]:
        """Who answered and the state after a round; devices train on a share of their samples."""
        message: dict[str, Any] = {"zeta": Each(state.zeta), "trunk": state.trunk, "share": share}
        new = state.size[clients.ids] == 0
        starters, veterans = clients.only(clients.ids[new]), clients.only(clients.ids[~new])
        ids, up = merge_answers(
            starters.run(self.begin, omega=Each(state.omega), **message),
            veterans.run(self.train, **message),
        )
        if up is None:
            return ids, state
        omega = state.omega.index_put((ids,), up.omega)
        pairs, zeta = self._fuse(Pairs(*state[-4:]), omega, ids, lam)
        size, trunk = state.size.index_put((ids,), up.size), up.trunk.mean(0)
        return ids, State(omega, zeta, trunk, size, state.lam, *pairs)

    def _fuse(self, pairs: Pairs, omega: Tensor, ids: Tensor, lam: float) -> tuple[Pairs, Tensor]:
        """The pairs and zeta after the devices `ids` have moved to their rows of omega."""
        shrink = partial(fusion.l1, lam=lam, rho=self.rho)
        if self.penalty == "scad":
            shrink = partial(fusion.scad, lam=lam, a=self.a, rho=self.rho, xi=self.xi)
        touched = fusion.touched(len(omega), ids, both=self.pairs == "both")
        return fusion.update(pairs, omega, touched, shrink, forget=self.pairs == "either")

    def _clusters(self, state: State) -> Tensor:
        """The cluster of every device, [m]."""
        return fusion.components(Pairs(*state[-4:]), state.omega, self.nu)

    def _models(self, state: State, cluster: Tensor, layout: Layout) -> Tensor:
        """The model of every cluster [k, d]: the mean of its devices', weighted by n_i."""
        mean = fusion.cluster_means(state.omega, cluster, state.size)
        return join(layout.part(self.part), mean, state.trunk)

    def _warmed_up(self, state: State, start: Start) -> State:
        """The best clusters and models on a path of lambdas, falling from where all are one."""
        part = start.task.layout.part(self.part)
        common = join(part, state.omega[0], state.trunk)
        ids, up = start.everybody().run(self.slope, model=common)
        top = float(torch.pdist(up.gradient).max()) if len(ids) > 1 else 1.0
        best, lams, least = Tensor(), [0.0], torch.inf
        used = torch.tensor(1 - self.hold, dtype=torch.float64)  # as exact as where it is judged
        for lam in (top * self.lam_least ** torch.linspace(0, 1, self.lambdas).double()).tolist():
            for r in range(self.path_rounds):
                state = self._advance(state, start.sample(r), lam, used)[1]
            cluster = self._clusters(state)
            if torch.equal(cluster, best):
                lams.append(lam)
                continue
            fitted, loss = self._fitted(cluster, common.repeat(int(cluster.max()) + 1, 1), start)
            if loss <= least:
                best, models, lams, least = cluster, fitted, [lam], loss
            if len(fitted) > start.clients / 2:
                break  # from here on clusters only fall apart
        for stage in range(1, self.stages + 1):
            fitted, loss = self._fitted(best, models, start, stage)
            if not loss < least:
                break
            models, least = fitted, loss
        own, trunk = split(part, models)
        lam, omega = fusion.widest(lams, self.a, own), own[best]
        pairs, zeta = self._fuse(together(omega), omega, torch.arange(len(omega)), lam)
        unheard = torch.zeros_like(state.size)  # devices have yet to hear of their new start
        return State(omega, zeta, trunk.mean(0), unheard, omega.new_tensor(lam), *pairs)

    def _fitted(
        self, cluster: Tensor, models: Tensor, start: Start, stage: int = 0
    ) -> tuple[Tensor, float]:
        """Models [k, d] trained on in given clusters [m]; their mean loss on what is held out."""
        fold = ByCluster(len(models), by_size=True)
        for r in range(stage * self.path_rounds, (stage + 1) * self.path_rounds):
            model = Each(models, cluster)
            _, up = start.sample(r).run(self.fit, fold=fold, model=model, cluster=Each(cluster))
            models = up.mean("model", empty=models)
        ids, held_out = start.everybody().run(self.judge, model=Each(models, cluster))
        return models, float(held_out.loss.mean()) if len(ids) else torch.inf
