"""What a run keeps to predict by: its models, whom they serve, and how their network is built."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.sample_kinds import sample_shape
from coterie.core.state import describe_state, state_tensors
from coterie.data.federation import Federation
from coterie.experiment.outcome import Outcome, made_models, own_servings
from coterie.experiment.settings import setting_names
from coterie.prediction.kept_models import KeptModels
from coterie.prediction.predictor import Predictor
from coterie.prediction.sample_groups import SampleGroups
from coterie.prediction.task_record import describe_task, frozen_weights
from coterie.registry import resolve
from coterie.tensors.lazy import dense
from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.experiment.run import Run


def kept_models(run: Run, *, finished: bool = True) -> KeptModels:
    """The models of the last round that was done, and whom they serve.

    Models that clients fine-tune at the end are there when the run is `finished`.
    """
    outcome, data = run.training.outcome, run.federation
    serving = outcome.serving
    models = dense(serving.models).detach().cpu()
    by_sample, own_only = serving.label is not None, serving.adapt is not None
    own = outcome.own_models if finished else made_models(outcome, own_servings(serving))
    if own_only:  # what clients' own models began from serves nobody
        models = models[:1]
    shares = None
    if serving.mixture is not None:
        shares = models.new_zeros(len(data), len(models))
        shares[serving.ids] = serving.mixture.to(shares.dtype)
    others = {f"frozen.{n}": each for n, each in frozen_weights(run.task.module).items()}
    if by_sample:
        others |= {f"state.{n}": each for n, each in state_tensors(run.state).items()}
        others |= run.population.memory.to_tensors()
    facts = {
        "algorithm": run.config["algorithm"],
        "federation": run.config["federation"],
        "rounds": run.rounds,
        "planned": run.settings.rounds,
        "finished": finished,
        "seed": run.settings.seed,
        **data_facts(data),
        "task": describe_task(run.task, run.config.get("settings", {})),
        "own_only": own_only,
        "own_left_out": own.left_out,
        "samples": sample_facts(run) if by_sample else None,
    }
    members = count_members(outcome, serving, shares, len(models))
    ids = own.ids if len(own.ids) else None
    return KeptModels(models, outcome.clusters, members, facts, own.models, ids, shares, others)


def data_facts(data: Federation) -> dict[str, Any]:
    """What is kept of the clients' data: names, classes, shape and schema."""
    return {
        "coterie": __version__,
        "clients": list(data.clients),
        "classes": list(data.classes),
        "outputs": data.outputs,
        "shape": plain_shape(sample_shape(data.train.x)),
        "schema": None if data.schema is None else data.schema.raw(),
    }


def count_members(outcome: Outcome, serving: Serving, shares: Tensor | None, k: int) -> Tensor:
    """How many clients each of k groups has, [k]; of mixtures the sum of their shares."""
    if shares is not None:
        return shares.double().sum(0)
    groups = outcome.evaluation.groups if serving.choose is not None else None
    if groups is not None:
        return groups.sizes.double()
    known = outcome.clusters[(outcome.clusters >= 0) & (outcome.clusters < k)]
    return torch.bincount(known, minlength=k).double()


def plain_shape(shape: Any) -> list[int] | None:
    """The shape of samples that are one tensor each, as JSON has it; None of others."""
    return None if isinstance(shape, dict) else list(shape)


def sample_facts(run: Run) -> dict[str, Any]:
    """What says where a new sample belongs, but for tensors."""
    settings: dict[str, Any] = asdict(run.algorithm)  # type: ignore[call-overload]
    return {
        "settings": settings,
        "state": describe_state(run.state, run.algorithm),
        "network": named_network(run),
        "planned": run.settings.rounds,
    }


def named_network(run: Run) -> dict[str, Any]:
    """The network of a run by its name and settings; where it has none, any will do."""
    known = run.config.get("settings", {})
    record = describe_task(run.task, known)["network"]
    if record is not None and "name" in record:  # of a grid, that of this copy
        return {"name": record["name"], "settings": record["settings"]}
    if known.get("network"):
        names = setting_names(resolve("network", known["network"]))
        return {"name": known["network"], "settings": {name: known[name] for name in names}}
    return {"name": "linear", "settings": {}}


def predictor_of_run(run: Run) -> Predictor:
    """The models of a run, ready to predict; nothing is read from disk."""
    kept = kept_models(run)
    if run.serving.label is None:
        return Predictor(kept, run.task)
    parts = (run.algorithm, run.state, run.population.memory, len(run.federation))
    return Predictor(kept, run.task, SampleGroups(*parts, run.settings.seed))
