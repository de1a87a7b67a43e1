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
- Lambda need not be given: by default it is chosen on a path of falling values, by how well models
  trained in its clusters serve samples that devices hold out (`fpfc_path.py`).
- Pairs with either device in A_k are updated, as in the authors' code; the text has `pairs=both`.
- Of a larger network a part may be fused (`part=head`); the rest is averaged over everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import fpfc_path, steps
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, merge_answers, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Model, Size
from coterie.core.settings import setting
from coterie.core.shared_trunk import SharedTrunk
from coterie.core.task import Task
from coterie.core.validate import above, at_least, one_of
from coterie.vectors import fusion
from coterie.vectors.fusion import Pairs


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

    @property
    def pairs(self) -> Pairs:
        """What is kept of theta_ij and v_ij."""
        return Pairs(self.pair, self.delta, self.norm, self.scale)


class Upload(NamedTuple):
    omega: Model  # [m, p] omega_i
    trunk: Model  # [m, d - p] the rest of the model
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FPFC(fpfc_path.PathSettings):
    """Devices keep models of their own, which a penalty on their differences draws together."""

    traits: ClassVar[Traits] = Traits(averages=False)

    lam: float = setting(0.0, "strength of the fusion lambda; 0: chosen on a path", at_least(0))
    rho: float = setting(1.0, "strength of the pull towards zeta", above(0))
    nu: float = setting(0.1, "devices whose models differ by no more are in one cluster", above(0))
    penalty: str = setting("scad", "penalty on differences", one_of("scad", "l1"))
    a: float = setting(3.7, "where SCAD ends: models a lambda apart do not attract each other")
    xi: float = setting(0.001, "below this difference SCAD is quadratic", above(0))
    part: str = setting("all", "the part of the model that is fused: all, head, or a layer's name")
    pairs: str = setting(
        "either",
        "which devices of a pair must take part for it to be updated",
        one_of("either", "both"),
    )
    apart: int = setting(0, "rounds before anything is fused, for a given lambda", at_least(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        above(1 + 1 / self.rho)(self, "a")
        if self.apart and not self.lam:
            raise SettingError(f"`apart` of FPFC needs a `lam` of your own, got {self.apart} and 0")

    def init(self, start: Start) -> State:
        own, trunk = self.sharing(start.task).parts(start.models(1)[0])
        omega = own.repeat(start.clients, 1)
        size = torch.zeros(start.clients, dtype=torch.long)
        pairs = fusion.all_pairs(omega)
        state = State(omega, omega, trunk, size, omega.new_tensor(self.lam), *pairs)
        return state if self.lam else fpfc_path.best_on_path(self, state, start)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        lam = 0.0 if clients.round < self.apart else float(state.lam)
        ids, state = self.advance(state, clients, lam, torch.tensor(1.0))
        cluster = self.clusters(state)
        return state, Info(ids, cluster[ids], int(cluster.max()) + 1)

    def serve(self, state: State, clients: Clients) -> Serving:
        cluster = self.clusters(state)
        mean = fusion.cluster_means(state.omega, cluster, state.size)
        models = self.sharing(clients.task).whole(mean, state.trunk)
        heard = torch.where(state.size > 0, cluster, -1)
        clients, cluster = steps.with_newcomers(self.choose, models, heard, clients)
        return Serving(models, clients.ids, cluster[clients.ids])

    @on_client(origins={"omega": "zeta", "trunk": "trunk"})
    def begin(
        self, cohort: Cohort, omega: Tensor, zeta: Tensor, trunk: Tensor, share: Tensor
    ) -> Upload:
        cohort.keep("omega", omega)
        return self.train(cohort, zeta, trunk, share)

    @on_client(origins={"omega": "zeta", "trunk": "trunk"})
    def train(self, cohort: Cohort, zeta: Tensor, trunk: Tensor, share: Tensor) -> Upload:
        sharing = self.sharing(cohort.task)
        omega = sharing.whole(cohort.recall("omega"), trunk)
        anchor, pull = sharing.whole(zeta, trunk), self.rho * sharing.part
        used = cohort.training_part(float(share))
        omega, trunk = sharing.parts(self.local_update(used, omega, pull=pull, anchor=anchor))
        cohort.keep("omega", omega)
        return Upload(omega, trunk, cohort.size)

    choose = steps.choose
    slope, fit, judge = fpfc_path.slope, fpfc_path.fit, fpfc_path.judge

    def advance(
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
        pairs, zeta = self.fuse(state.pairs, omega, ids, lam)
        size, trunk = state.size.index_put((ids,), up.size), up.trunk.mean(0)
        return ids, State(omega, zeta, trunk, size, state.lam, *pairs)

    def fuse(self, pairs: Pairs, omega: Tensor, ids: Tensor, lam: float) -> tuple[Pairs, Tensor]:
        """theta_ij and v_ij of the pairs, and zeta, after devices `ids` moved to omega [m, p]."""
        shrink = partial(fusion.l1_scale, lam=lam, rho=self.rho)
        if self.penalty == "scad":
            shrink = partial(fusion.scad_scale, lam=lam, a=self.a, rho=self.rho, xi=self.xi)
        active = fusion.active_pairs(len(omega), ids, both=self.pairs == "both")
        return fusion.update_pairs(pairs, omega, active, shrink, forget=self.pairs == "either")

    def clusters(self, state: State) -> Tensor:
        """The cluster of every device, [m]."""
        return fusion.connected_clusters(state.pairs, state.omega, self.nu)

    def sharing(self, task: Task) -> SharedTrunk:
        """What of a model is each device's own and fused in pairs."""
        return SharedTrunk(task.layout.part(self.part))
