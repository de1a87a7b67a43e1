"""Start policies: where the k models of a clustered algorithm begin.

From k random models one of them often takes everybody, or two true clusters share a model for good.
A policy spends a few rounds before the first to avoid that. It knows nothing of the algorithm but
what a `Trial` can do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import Start
from coterie.core.clients import Clients
from coterie.core.errors import CoterieError, CoterieWarning, DataError, SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, one_of
from coterie.vectors.kmeans import kmeans
from coterie.vectors.outlier_factor import outlier_factors

# Clients asked per cluster when models are judged, also where fewer take part in a round.
PANEL = 25
TEACHERS = 16  # clients of which `greedy` chooses those whose models are kept
OUTLIER = 1.5  # local outlier factor above which `models` leaves a client out
CLUSTERINGS = 20  # of which `models` takes the tightest


@dataclass(frozen=True)
class Trial:
    """What a policy may do: draw models, ask clients for their losses, train them."""

    k: int
    start: Start
    draw: Callable[..., Tensor]  # as `Start.models`, of what clusters have of their own: [count, p]
    losses: Callable[[Tensor, Clients], tuple[Tensor, Tensor]]  # [j, p] -> ids [a], losses [a, j]
    advance: Callable[[Tensor, Clients], Tensor]  # [j, p] -> [j, p], after a round of the algorithm
    teach: Callable[[Tensor, Clients], Tensor]  # [1, p] -> [1, p], after local training of a client
    # [p], rounds -> ids [a], k at least, and what each makes of the model by itself, [a, p]
    fits: Callable[[Tensor, int, Clients], tuple[Tensor, Tensor]]
    distance: float = 0.25  # from the truth, in separations, where a policy begins near it

    def panel(self) -> Clients:
        """The clients that judge: those of a round, but at least 25 for each cluster."""
        return self.start.sample(0, at_least=PANEL * self.k)

    def judge(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Who of the panel answered [a], and their losses [a, j]."""
        ids, losses = self.losses(models, self.panel())
        if len(ids) == 0:
            raise CoterieError("no client answered during the start, so no model could be judged")
        return ids, losses


def settled_start(algorithm: Any, wary: bool) -> Any:
    """The algorithm with the policy that `auto` stands for, by which a run is known."""
    if getattr(algorithm, "start", "") != "auto":
        return algorithm
    return replace(algorithm, start="greedy" if wary else "farthest")


def begin_models(policy: str, trial: Trial, tries: int, rounds: int) -> Tensor:
    """The k models [k, p] that a policy makes; if `initial` has k models, it is these."""
    initial = trial.start.initial
    if initial is not None and len(initial) == trial.k:
        return trial.draw(trial.k)
    if policy == "auto":
        policy = "greedy" if trial.start.wary else "farthest"
    return POLICIES[policy](trial, tries, rounds)


def draw_random(trial: Trial, tries: int, rounds: int) -> Tensor:
    """k independent draws, as Algorithm 1 leaves it."""
    return trial.draw(trial.k)


def keep_best_restart(trial: Trial, tries: int, rounds: int) -> Tensor:
    """Train `tries` draws for a few rounds each and keep the one with the lowest training loss."""

    def trained(attempt: int) -> Tensor:
        models = trial.draw(trial.k, attempt)
        for r in range(rounds):
            models = trial.advance(models, trial.start.sample(r, at_least=trial.k))
        return models

    attempts = (trained(attempt) for attempt in range(tries))
    return min(attempts, key=lambda models: float(trial.judge(models)[1].amin(1).mean()))


def draw_until_balanced(trial: Trial, tries: int, rounds: int) -> Tensor:
    """Draw until each cluster is chosen by at least 0.7/k of the clients.

    For k = 2 these are the 35 % of the authors' CIFAR experiment. If no draw gets there, the one
    whose smallest cluster is largest is taken, with a warning.
    """
    best, best_share = None, -1.0
    for attempt in range(tries):
        models = trial.draw(trial.k, attempt)
        chosen = trial.judge(models)[1].argmin(1)
        share = float(torch.bincount(chosen, minlength=trial.k).min()) / len(chosen)
        if share > best_share:
            best, best_share = models, share
        if share >= 0.7 / trial.k:
            break
    else:
        warnings.warn(
            f"start=reject: none of {tries} draws gave each cluster {0.7 / trial.k:.0%} of the "
            f"clients; the best gave the smallest cluster {best_share:.0%}",
            CoterieWarning,
            stacklevel=2,
        )
    assert best is not None
    return best


def train_on_random_shares(trial: Trial, tries: int, rounds: int) -> Tensor:
    """Train each draw alone for a few rounds, on its own random share of the clients.

    A network that brings its weights is trained k times.
    """
    order = torch.randperm(trial.start.clients, generator=seeds.generator(trial.start.seed, "warm"))
    group = torch.empty_like(order)
    group[order] = torch.arange(len(order)) % trial.k
    models = []
    for j, model in enumerate(trial.draw(trial.k, distinct=False)):
        model = model[None]
        for r in range(rounds):
            sample = trial.start.sample(r, at_least=PANEL * trial.k)
            mine = sample.ids[group[sample.ids] == j]
            if len(mine):
                model = trial.advance(model, sample.only(mine))
        models.append(model)
    return torch.cat(models)


def follow_worst_served(trial: Trial, tries: int, rounds: int) -> Tensor:
    """Each next model is trained by the client that the models so far serve worst.

    The first is trained by the client that one common model serves worst. All are trained from that
    model, a random one or that which the network brings, so that they differ by what their client
    taught them and not by chance.
    """
    panel = trial.panel()
    common = trial.draw(1)
    best = torch.full((trial.start.clients,), torch.inf, dtype=common.dtype)  # loss of each so far
    ids, loss = trial.judge(common)
    client = ids[loss[:, 0].argmax()].view(1)
    models: list[Tensor] = []
    while True:
        model = common
        for _ in range(rounds):
            model = trial.teach(model, panel.only(client))
        models.append(model)
        trial.start.teachers.extend(client.tolist())
        if len(models) == trial.k:
            return torch.cat(models)
        ids, loss = trial.judge(model)
        best[ids] = torch.minimum(best[ids], loss[:, 0])
        best[client] = -torch.inf  # a client teaches once
        client = ids[best[ids].argmax()].view(1)


def keep_most_helpful(trial: Trial, tries: int, rounds: int) -> Tensor:
    """Random clients teach a model each; k times that is kept by which the panel gains most.

    A client gains what its loss under the best model so far is below that under the common model
    from which all are taught, but it counts for no more than the median client could gain. So
    clients count by their number: a model that serves few is not kept, however badly these are
    served without it or say that they are. An adversary's model is kept only if it serves others.
    """
    panel, common = trial.panel(), trial.draw(1)
    order = torch.randperm(len(panel.ids), generator=trial.start.generator("teachers"))
    teachers = panel.ids[order[: max(TEACHERS, trial.k)]].sort().values
    taught = []
    for client in teachers.split(1):
        model = common
        for _ in range(rounds):
            model = trial.teach(model, panel.only(client))
        taught.append(model)
    losses = trial.judge(torch.cat([common, *taught]))[1].double()  # [a, 1 + teachers]
    gain = (losses[:, :1] - losses[:, 1:]).nan_to_num(nan=0.0).clamp_min(0)
    gain = gain.clamp_max(float(gain.amax(1).median()))
    best, kept = torch.zeros(len(gain), 1, dtype=gain.dtype), list[int]()
    while len(kept) < min(trial.k, len(taught)):
        total = torch.maximum(best, gain).sum(0)  # were a model kept
        total[kept] = -torch.inf
        kept.append(int(total.argmax()))
        best = torch.maximum(best, gain[:, kept[-1:]])
    trial.start.teachers.extend(teachers[kept].tolist())
    return torch.cat([taught[j] for j in kept])


def cluster_client_models(trial: Trial, tries: int, rounds: int) -> Tensor:
    """The centres of what the panel makes of one common model, each client by itself.

    Clients whose local outlier factor is above 1.5 are left out first, and the tightest of twenty
    clusterings is taken. Unlike the other policies it shows the server the models of single
    clients.
    """
    common = trial.draw(1)[0]
    ids, models = trial.fits(common, rounds, trial.panel())
    kept = outlier_factors(models - common) <= OUTLIER
    if int(kept.sum()) < trial.k:  # too few to find clusters by
        kept = torch.ones_like(kept)
    trial.start.teachers.extend(ids[kept].tolist())
    seed = seeds.derive(trial.start.seed, "client models")
    return kmeans(models[kept], trial.k, seed, tries=CLUSTERINGS).centres


def draw_near_truth(trial: Trial, tries: int, rounds: int) -> Tensor:
    """The true parameters, each displaced in a random direction by `distance` separations.

    For reference only, for no real method knows them: theorems assume such a start, as Assumption 1
    of the IFCA paper does with a quarter of the separation, the least distance of two of them.
    """
    truth, start = trial.start.parameters, trial.start
    if truth is None:
        raise DataError("start=near-truth needs a federation whose true parameters are known")
    if list(truth.shape) != [trial.k, start.task.layout.size]:
        raise SettingError(
            f"start=near-truth must have as many models as there are true parameters and of their "
            f"size, {list(truth.shape)}, got {[trial.k, start.task.layout.size]}"
        )
    direction = torch.randn(truth.shape, generator=start.generator("near truth"))
    separation: Tensor = torch.pdist(truth).min() if len(truth) > 1 else truth.norm()
    step = trial.distance * separation / direction.norm(dim=1, keepdim=True)
    near: Tensor = truth + step * direction
    return near.to(start.task.layout.dtype)


POLICIES = {
    "random": draw_random,
    "restarts": keep_best_restart,
    "reject": draw_until_balanced,
    "warm": train_on_random_shares,
    "farthest": follow_worst_served,
    "greedy": keep_most_helpful,
    "models": cluster_client_models,
    "near-truth": draw_near_truth,
}


@dataclass(frozen=True, kw_only=True)
class StartSettings(Settings):
    """Settings of a start policy, which an algorithm that begins with k models takes in."""

    start: str = setting(
        "auto",
        "start policy; auto: farthest, or greedy with attack=, aggregate= or screen=",
        one_of("auto", *POLICIES),
    )
    tries: int = setting(10, "draws of k models that restarts and reject may make", at_least(1))
    start_rounds: int = setting(
        10, "training rounds before the first, of most policies", at_least(1)
    )
