"""The model of one client as a network of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.algorithm import Serving
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.task import Task
from coterie.evaluation.scoring import SimulatedScorer
from coterie.experiment.outcome import Outcome


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
    if int(alone.cluster) < 0:
        raise SettingError(f"which model serves client {client} is known to that client alone")
    if serving.adapt is None:
        return load_model(task, serving.models[int(alone.cluster)])
    scorer = outcome.evaluator.scorer
    if not isinstance(scorer, SimulatedScorer):
        raise SettingError(f"client {client} makes a model of its own, which does not leave it")
    return load_model(task, scorer.own_models(alone)[0])


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


class MixtureModule(nn.Module):
    """Several models whose predictions are mixed in shares [1, k], as the task mixes them.

    Models without a share are left out.
    """

    def __init__(self, task: Task, models: Tensor, shares: Tensor) -> None:
        super().__init__()
        used = shares[0] > 0
        self.parts = nn.ModuleList(load_model(task, model) for model in models[used])
        self.register_buffer("shares", shares[:, used].clone())
        self.mix = task.mix
        self.eval()

    def forward(self, *inputs: Any) -> Tensor:
        outputs = torch.stack([part(*inputs) for part in self.parts])  # [k, n, ...]
        return self.mix(outputs[:, None], self.get_buffer("shares"))[0]


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


def load_model(task: Task, vector: Tensor) -> nn.Module:
    """A copy of the task's network with the weights of a flat vector [d]."""
    module = copy.deepcopy(task.module)
    tensors = {name: value.clone() for name, value in task.layout.unflatten(vector).items()}
    module.load_state_dict(tensors, strict=False)
    return module.eval()
