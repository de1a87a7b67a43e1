"""The path over lambda with which FPFC begins where no lambda is given; it is not in the paper.

    lambda_1 > ... > lambda_L, of which the first draws all devices together
    for each lambda:
        FPFC's rounds on the samples that are not held out, from where the last lambda ended
        if the clusters are new: train a model in each of them, without fusion
        the best clusters are those whose models have the lowest loss on the samples held out
    train the models of the best clusters on, until their loss is no lower

FPFC's own rounds begin with these models. Their lambda is the largest with the best clusters under
which the models of different clusters do not attract each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.steps import HeldOutLoss, held_out_loss
from coterie.core.algorithm import Start
from coterie.core.clients import Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size, Update
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least, between
from coterie.vectors.folds import ByCluster
from coterie.vectors.fusion import all_pairs

if TYPE_CHECKING:
    from coterie.algorithms.fpfc import FPFC, State


@dataclass(frozen=True, kw_only=True)
class PathSettings(LocalTraining):
    """Settings of local training, and of the path."""

    lambdas: int = setting(8, "values of lambda on the path", at_least(1))
    lam_least: float = setting(
        0.1, "the last of them, as a share of the first, which joins everybody", between(0, 1)
    )
    path_rounds: int = setting(100, "rounds for each of them", at_least(1))
    stages: int = setting(
        40, "times path_rounds that models of the best clusters train on, at most", at_least(0)
    )
    hold: float = setting(0.2, "share of a device's samples that the path holds out", between(0, 1))


class Slope(NamedTuple):
    gradient: Update  # [m, p] grad f_i at omega^0


class Fitted(NamedTuple):
    cluster: Cluster  # [m]
    model: Model  # [m, d] model trained in the cluster, without fusion
    size: Size  # [m] samples n_i


def best_on_path(fpfc: FPFC, state: State, start: Start) -> State:
    """The best clusters and models on a path of lambdas, falling from where all are one."""
    sharing = fpfc.sharing(start.task)
    common = sharing.whole(state.omega[0], state.trunk)
    ids, up = start.all_clients().run(fpfc.slope, model=common)
    top = float(torch.pdist(up.gradient).max()) if len(ids) > 1 else 1.0
    best, lams, least = Tensor(), [0.0], torch.inf
    used = torch.tensor(1 - fpfc.hold, dtype=torch.float64)  # as exact as where it is judged
    for lam in (top * fpfc.lam_least ** torch.linspace(0, 1, fpfc.lambdas).double()).tolist():
        for r in range(fpfc.path_rounds):
            state = fpfc.advance(state, start.sample(r), lam, used)[1]
        cluster = fpfc.clusters(state)
        if torch.equal(cluster, best):
            lams.append(lam)
            continue
        fitted, loss = fit_clusters(fpfc, cluster, common.repeat(int(cluster.max()) + 1, 1), start)
        if loss <= least:
            best, models, lams, least = cluster, fitted, [lam], loss
        if len(fitted) > start.clients / 2:
            break  # from here on clusters only fall apart
    for stage in range(1, fpfc.stages + 1):
        fitted, loss = fit_clusters(fpfc, best, models, start, stage)
        if not loss < least:
            break
        models, least = fitted, loss
    own, trunk = sharing.parts(models)
    lam, omega = largest_separating(lams, fpfc.a, own), own[best]
    pairs, zeta = fpfc.fuse(all_pairs(omega), omega, torch.arange(len(omega)), lam)
    unheard = torch.zeros_like(state.size)  # devices have yet to hear of their new start
    return type(state)(omega, zeta, trunk.mean(0), unheard, omega.new_tensor(lam), *pairs)


def fit_clusters(
    fpfc: FPFC, cluster: Tensor, models: Tensor, start: Start, stage: int = 0
) -> tuple[Tensor, float]:
    """Models [k, d] trained on in given clusters [m]; their mean loss on what is held out."""
    fold = ByCluster(len(models), {"model": "model"}, by_size=True)
    for r in range(stage * fpfc.path_rounds, (stage + 1) * fpfc.path_rounds):
        model = Each(models, cluster)
        _, up = start.sample(r).run(fpfc.fit, fold=fold, model=model, cluster=Each(cluster))
        models = up.mean("model")
    ids, held_out = start.all_clients().run(fpfc.judge, model=Each(models, cluster))
    return models, float(held_out.loss.mean()) if len(ids) else torch.inf


def largest_separating(lams: list[float], a: float, models: Tensor) -> float:
    """The largest of falling lambdas under which the models [k, p] of clusters do not attract each
    other, that is, with a lambda at most their least distance; the smallest if there is none.

    >>> largest_separating([4.0, 2.0, 1.0], 3.0, torch.tensor([[0.0], [6.5]]))
    2.0
    """
    gap = float(torch.pdist(models).min()) if len(models) > 1 else torch.inf
    return next((lam for lam in lams if a * lam <= gap), lams[-1])


# Client steps of FPFC, which `self` is.


@on_client
def slope(self: Any, cohort: Cohort, model: Tensor) -> Slope:
    gradient = cohort.gradient(model.expand(len(cohort), -1), statistics=False)
    return Slope(gradient[:, self.sharing(cohort.task).part])


@on_client(fold=ByCluster)
def fit(self: Any, cohort: Cohort, model: Tensor, cluster: Tensor) -> Fitted:
    used = cohort.training_part(1 - self.hold)
    return Fitted(cluster, self.local_update(used, model), cohort.size)


@on_client
def judge(self: Any, cohort: Cohort, model: Tensor) -> HeldOutLoss:
    return held_out_loss(cohort, 1 - self.hold, model)
