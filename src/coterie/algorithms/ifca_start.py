"""Where IFCA begins: with k models from a start policy, and with a trunk if clusters share one.

The paper begins with k random models (`start=random`); docs/ifca.md says what that costs. Its
authors' FEMNIST code trains the trunk by FedAvg beforehand and then freezes it (`share=frozen`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie import starts
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.steps import OwnModel, ask_losses, ask_models
from coterie.core.algorithm import Start
from coterie.core.clients import Clients
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.layout import keeps_statistics
from coterie.core.validate import at_most_clients

if TYPE_CHECKING:
    from coterie.algorithms.ifca import IFCA, State


def check_combination(ifca: IFCA, start: Start) -> None:
    """Refuse settings that do not go with the clients, the network or what the server is told."""
    at_most_clients(ifca, "k", start.clients)
    if start.withheld and ifca.stable:
        raise SettingError(
            "`stable` of IFCA must be 0 where clusters are withheld, for who is sent only its "
            f"own model is known by it, got {ifca.stable}"
        )
    if ifca.average == "gradients" and ifca.optimizer != "sgd":
        raise SettingError(
            "`optimizer` of IFCA must be sgd where gradients are averaged, since the server "
            f"makes the step, got {ifca.optimizer}"
        )
    if ifca.average == "gradients" and keeps_statistics(start.task.module):
        raise SettingError(
            "`average` of IFCA must be models for a network with batch normalisation, whose "
            "running statistics have no gradient, got gradients"
        )


def initial_trunk(ifca: IFCA, start: Start) -> Tensor:
    """The trunk [d - p] of a random model, or of one that FedAvg trained if it is to be frozen."""
    if ifca.share == "none":
        return torch.empty(0, dtype=start.task.layout.dtype)
    if ifca.share == "frozen":
        fedavg = FedAvg(**ifca.settings_by_name(), weighting=ifca.weighting)
        model = fedavg.model_after(ifca.trunk_rounds, start)
    else:
        model = start.models(1)[0]
    return ifca.sharing(start.task).parts(model)[1]


def initial_models(ifca: IFCA, state: State, start: Start) -> Tensor:
    """k models [k, p] that a start policy makes, on the trunk of a state that knows no identity."""
    sharing = ifca.sharing(start.task)

    def advance(average: str, models: Tensor, clients: Clients) -> Tensor:
        """The models after a round before the first: the trunk is held fixed, samples are all."""
        share = "none" if ifca.share == "none" else "frozen"
        plain = replace(ifca, k=len(models), average=average, share=share, stable=0, resample=False)
        return plain.round(state._replace(models=models), clients)[0].models

    trial = starts.Trial(
        k=ifca.k,
        start=start,
        draw=lambda *which, **how: sharing.parts(start.models(*which, **how))[0],
        losses=partial(ask_losses, ifca.losses, trunk=state.trunk),
        advance=partial(advance, ifca.average),
        teach=partial(advance, "models"),
        fits=partial(ask_models, ifca.train_alone, ifca.k, trunk=state.trunk),
        distance=ifca.start_distance,
    )
    return starts.begin_models(ifca.start, trial, ifca.tries, ifca.start_rounds)


def train_with_trunk(ifca: IFCA, cohort: Cohort, model: Tensor, trunk: Tensor) -> OwnModel:
    """What each client's training makes of its row of `model` [m, p], or of one for all [p]."""
    sharing = ifca.sharing(cohort.task)
    start = sharing.whole(model, trunk).expand(len(cohort), -1)
    part = None if ifca.share == "none" else sharing.part
    return OwnModel(sharing.parts(ifca.local_update(cohort, start, part=part))[0])
