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

from coterie.core.algorithm import Serving
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Loss
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import above


class Choice(NamedTuple):
    cluster: Cluster  # [m] model with the lowest loss


class Losses(NamedTuple):
    loss: Loss  # [m, k] mean loss under each model


class HeldOutLoss(NamedTuple):
    loss: Loss  # [m] mean loss on the samples held out


def server_step_setting() -> Any:
    """The setting of how far a server goes; several methods have it."""
    meaning = "share s of the way to the mean that the server goes; 1: FedAvg"
    return setting(0.6, meaning, above(0))


@on_client
def choose(self: LocalTraining, cohort: Cohort, models: Tensor) -> Choice:
    return Choice(self.training_samples(cohort).choose(models).cluster)


@on_client
def losses(self: LocalTraining, cohort: Cohort, models: Tensor) -> Losses:
    return Losses(self.training_samples(cohort).loss(models))


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
