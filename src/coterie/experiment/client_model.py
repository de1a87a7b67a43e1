"""The model of one client as a network of PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from coterie.core.algorithm import Serving
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.task import Task
from coterie.evaluation.scoring import SimulatedScorer
from coterie.experiment.outcome import Outcome
from coterie.prediction.modules import MixtureModule, load_model


def client_module(outcome: Outcome, task: Task, client: int | str) -> nn.Module:
    """The network that serves a client, with its weights, in evaluation mode."""
    number = client_number(outcome, client)
    serving = client_serving(outcome, number)
    if serving.label is not None:
        raise SettingError("samples are clustered, so that no one model serves a client")
    place = torch.nonzero(serving.ids == number).flatten()
    if not len(place):
        raise SettingError(f"client {client} is not served a model: it did not answer")
    alone = serving.for_clients(place)
    if alone.mixture is not None:
        return MixtureModule(task, serving.models, alone.mixture)
    own = outcome.own_models
    if bool((own.ids == number).any()):
        if own.models is not None:
            return load_model(task, own.models[int(torch.nonzero(own.ids == number))])
        scorer = outcome.evaluator.scorer
        if not isinstance(scorer, SimulatedScorer) or serving.choose is not None:
            raise SettingError(f"client {client} makes a model of its own, which does not leave it")
        return load_model(task, scorer.own_models(alone)[0])
    if int(alone.cluster) < 0:
        raise SettingError(f"which model serves client {client} is known to that client alone")
    return load_model(task, serving.models[int(alone.cluster)])


def client_serving(outcome: Outcome, number: int) -> Serving:
    """What serves client `number`; if it uses a model that it fine-tuned, that adapts to it."""
    personal, tuning = outcome.personal, outcome.evaluator.tuning
    if personal is None or tuning is None:
        return outcome.serving
    serving = personal.serving
    own = personal.uses_own
    if own is None or bool(own[serving.ids == number].any()):
        return serving._replace(adapt=tuning.after(serving.adapt))
    return serving


def client_number(outcome: Outcome, client: int | str) -> int:
    """The id of a client that is given by id or name."""
    federation = outcome.evaluator.federation
    if isinstance(client, str):
        if client not in federation.clients:
            near = did_you_mean(client, federation.clients)
            raise SettingError(f"no client is named {client}{near}")
        return federation.clients.index(client)
    if not 0 <= client < len(federation):
        raise SettingError(f"`client` must be from 0 to {len(federation) - 1}, got {client}")
    return client
