"""Client steps that several algorithms share, and what is built on them.

A shared step is a function with the parameters of a method. An algorithm makes it its own in the
body of its class, `choose = steps.choose`, so that a step is always one of an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.first_centres import trained_models
from coterie.core.algorithm import Serving
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Loss, Model
from coterie.core.local_training import LocalTraining


class Choice(NamedTuple):
    cluster: Cluster  # [m] model with the lowest loss


class Losses(NamedTuple):
    loss: Loss  # [m, k] mean loss under each model


class OwnModel(NamedTuple):
    model: Model  # [m, p] what a client's training makes of a model


class HeldOutLoss(NamedTuple):
    loss: Loss  # [m] mean loss on the samples held out


@on_client
def choose(self: LocalTraining, cohort: Cohort, models: Tensor) -> Choice:
    return Choice(self.training_samples(cohort).choose(models).cluster)


@on_client
def losses(self: LocalTraining, cohort: Cohort, models: Tensor) -> Losses:
    return Losses(self.training_samples(cohort).loss(models))


@on_client(origins={"model": "model"})
def train_alone(self: LocalTraining, cohort: Cohort, model: Tensor) -> OwnModel:
    model = model.expand(len(cohort), -1)
    return OwnModel(self.local_update(self.training_samples(cohort), model))


def held_out_loss(cohort: Cohort, share: float, model: Tensor) -> HeldOutLoss:
    """The loss of each client's row of `model` [m, d] where it trains on `share` of its samples."""
    return HeldOutLoss(cohort.split(share)[1].loss(model[:, None])[:, 0])


def with_newcomers(
    choose: Callable[..., Choice], models: Tensor, known: Tensor, clients: Clients
) -> tuple[Clients, Tensor]:
    """The clients that have a cluster, and the cluster by client id; newcomers choose one by loss.

    `choose` is the algorithm's client step of that name; `known` [m] is the cluster of each client
    so far, -1 if it has none.
    """
    ids = clients.ids
    unseen = int(ids.max()) + 1 - len(known) if len(ids) else 0  # numbered behind the others
    cluster = torch.cat([known, known.new_full((max(0, unseen),), -1)])
    new = ids[cluster[ids] < 0]
    if len(new):
        answered, chosen = ask_cluster(choose, clients.only(new), models=models)
        cluster[answered] = chosen
    return clients.only(ids[cluster[ids] >= 0]), cluster


def ask_cluster(
    step: Callable[..., Choice], clients: Clients, **sent: Any
) -> tuple[Tensor, Tensor]:
    """Who answered [a], and the cluster that each of them chose [a]."""
    ids, up = clients.run(step, **sent)
    return ids, up.cluster if len(ids) else torch.zeros_like(ids)


def serve_by_choice(
    step: Callable[..., Choice], models: Tensor, clients: Clients, /, **sent: Any
) -> Serving:
    """Each client is served the one of models [k, d] that it chooses by a client step.

    Where the server is not told, clients choose only when they use it.
    """
    if clients.withheld:
        unknown = torch.full_like(clients.ids, -1)
        return Serving(models, clients.ids, unknown, choose=partial(step, **sent))
    return Serving(models, *ask_cluster(step, clients, **sent))


def ask_losses(
    step: Callable[..., Losses], models: Tensor, clients: Clients, **sent: Any
) -> tuple[Tensor, Tensor]:
    """Who answered [a], and the loss of each of them under each model [a, j]."""
    ids, up = clients.run(step, models=models, **sent)
    return ids, up.loss if len(ids) else torch.zeros(0, len(models))


def ask_models(
    step: Callable[..., OwnModel],
    least: int,
    model: Tensor,
    rounds: int,
    clients: Clients,
    **sent: Any,
) -> tuple[Tensor, Tensor]:
    """Who answered [a], at least so many, and what each makes of a model [p] by itself, [a, p]."""
    ids, own = trained_models(step, clients, least, model=model, **sent)
    for _ in range(rounds - 1):
        again = Each(own, None, ids)
        ids, own = trained_models(step, clients.only(ids), least, model=again, **sent)
    return ids, own
