"""The final models of a run on its nodes: each keeps them, to score its own table with.

When a run is complete, the server sends every node that is online the models of all groups, how
many clients each group has, and which of its own clients are served by which. A client that makes a
model of its own, fine-tuned or not, or that chooses its group by itself, does so once more on its
node. The node writes what `coterie.load_run` reads into a folder of its memory, in place of what
the run before left there, and sends nothing back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.cohort import Cohort
from coterie.core.errors import CheckpointError, DataError, SettingError
from coterie.evaluation.personal import FineTuning
from coterie.experiment.kept_run import count_members
from coterie.flower.node_file import NodeFile
from coterie.flower.node_scoring import compute_by_chunk
from coterie.flower.step_exchange import encode_step
from coterie.flower.wire import BadPacket, Packet, decode_arguments
from coterie.prediction.kept_models import MODELS, KeptModels, read_models
from coterie.prediction.load_run import load_run
from coterie.prediction.predictor import Predictor
from coterie.prediction.task_record import describe_task, frozen_weights
from coterie.tensors.lazy import dense

if TYPE_CHECKING:
    from coterie.experiment.run import Run
    from coterie.flower.clients import Network
    from coterie.flower.node import Node
    from coterie.flower.settings import App


def hand_out_models(network: Network, run: Run) -> None:
    """Send each node that is online the models of a run that is complete.

    Where samples are clustered there are none to hand out: what says where a sample belongs may be
    what other clients sent.
    """
    serving, personal = run.serving, run.personal
    if serving.label is not None or not len(serving.ids):
        return
    models = dense(serving.models).detach().cpu()
    shares = None
    if serving.mixture is not None:
        shares = models.new_zeros(network.population, len(models))
        shares[serving.ids] = serving.mixture.to(shares.dtype)
    members = count_members(run.training.outcome, serving, shares, len(models))
    tuned = None
    if personal is not None:
        uses = personal.uses_own
        chosen = personal.serving.ids if uses is None else personal.serving.ids[uses]
        tuned = torch.zeros(network.population, dtype=torch.bool)
        tuned[chosen] = True

    def contents(ids: Tensor) -> Packet:
        own = serving.for_clients(torch.isin(serving.ids, ids))
        header, tensors = serving_message(own, ids)
        header["tune"] = tuned is not None
        tensors |= {"models": models, "members": members, "cluster": spread_rows(own, ids)}
        if shares is not None:
            tensors["mixture"] = shares[ids]
        if tuned is not None:
            tensors["tuned"] = tuned[ids]
        return Packet(header, tensors)

    nodes = network.roster.online(network.ids)
    packets = {node: network.packet("keep", ids, contents(ids)) for node, ids in nodes.items()}
    network.roster.hand_out(packets)


def serving_message(serving: Serving, ids: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors that say by which step clients `ids` are served, if by one."""
    step = serving.choose or serving.adapt
    use = "choose" if serving.choose else ("adapt" if serving.adapt else "")
    header: dict[str, Any] = {"plain": {}}
    tensors: dict[str, Tensor] = {}
    # Who chooses by himself adapts by fine-tuning alone, which a node knows of.
    if step is not None:
        header, tensors = encode_step(step, {}, ids)
    return {**header, "use": use, "by": serving.chosen_by}, tensors


def spread_rows(serving: Serving, ids: Tensor) -> Tensor:
    """The cluster of each of clients `ids` [a]; -1 for one that is not served."""
    found = torch.full_like(ids, -1)
    found[torch.isin(ids, serving.ids)] = serving.cluster
    return found


def keep_final_models(node: Node, packet: Packet, step: Any) -> None:
    """Keep the models of a message on the node, with those that its clients make of them.

    step  by which clients choose a group or make a model of their own, where the message names one
    """
    use, ids = packet.get("use", str), node.ids
    models, members = check_models_sent(node, packet)
    tuning = node.fine_tuning if packet.get("tune", bool) else None
    cluster = packet.tensor("cluster")
    extra = decode_arguments(packet, ids)
    if use == "choose":
        by = node.simulator(packet, "by")
        choose = partial(step, **extra)
        (cluster,) = compute_by_chunk(by, ids, "choose", lambda cohort: (choose(cohort).cluster,))
    adapt = partial(step, **extra) if use == "adapt" else None
    served = cluster >= 0
    own_ids = ids[served & own_mask(packet, ids, adapt, tuning)]
    own = None
    if len(own_ids):
        rows = models[cluster[torch.searchsorted(ids, own_ids)]]
        own = make_own_models(node, own_ids, rows, adapt, tuning, packet.tensors.get("tuned"))
    place = node.rows  # where the clients of the message lie among those of the node
    count = len(node.names)
    shares = packet.tensors.get("mixture")
    kept = KeptModels(
        models if adapt is None else models[:1],
        torch.full((count,), -1).index_copy(0, place, cluster),
        members if adapt is None else members[:1],
        final_facts(node, packet, own_only=adapt is not None),
        own,
        place[torch.searchsorted(ids, own_ids)] if len(own_ids) else None,
        None
        if shares is None
        else shares.new_zeros(count, len(models)).index_copy(0, place, shares),
        {f"frozen.{n}": each for n, each in frozen_weights(node.task.module).items()},
    )
    folder = model_folder(node.file)
    check_replaceable(folder)
    Predictor(kept, node.task).save(folder)


def own_mask(packet: Packet, ids: Tensor, adapt: Any, tuning: FineTuning | None) -> Tensor:
    """Which of clients `ids` [a] have a model of their own."""
    if adapt is not None:
        return torch.ones_like(ids, dtype=torch.bool)
    if tuning is None:
        return torch.zeros_like(ids, dtype=torch.bool)
    return packet.tensor("tuned")


def make_own_models(
    node: Node,
    own_ids: Tensor,
    models: Tensor,
    adapt: Callable[..., Tensor] | None,
    tuning: FineTuning | None,
    tuned: Tensor | None,
) -> Tensor:
    """The models [a, d] that clients make of their rows of `models` [a, d], on their own data."""
    train = node.simulators["train"]

    def make(cohort: Cohort) -> tuple[Tensor, ...]:
        model = models[torch.searchsorted(own_ids, cohort.ids)]
        if adapt is not None:
            model = adapt(cohort, model=model)
        if tuning is not None and tuned is not None:
            uses = tuned[torch.searchsorted(node.ids, cohort.ids)]
            after = dense(tuning.tune(cohort, model))
            model = torch.where(uses[:, None], after, dense(model))
        return (dense(model),)

    (own,) = compute_by_chunk(train, own_ids, "adapt", make)
    return own.detach().cpu()


def check_models_sent(node: Node, packet: Packet) -> tuple[Tensor, Tensor]:
    """The models of a message and how many clients each has; what cannot be these is refused."""
    models, members = packet.tensor("models"), packet.tensor("members")
    size, clients = node.task.layout.size, len(node.ids)
    if models.dim() != 2 or models.shape[1] != size or not models.is_floating_point():
        raise BadPacket(f"the final models must be rows of {size} numbers")
    if members.shape != (len(models),) or not bool((members >= 0).all()):
        raise BadPacket("a message must say how many clients each final model has")
    cluster = packet.tensor("cluster")
    inside = cluster.shape == (clients,) and cluster.dtype == torch.long
    if not inside or bool(((cluster < -1) | (cluster >= len(models))).any()):
        raise BadPacket("a message must say which final model serves each client")
    tuned, mixture = packet.tensors.get("tuned"), packet.tensors.get("mixture")
    if tuned is not None and (tuned.shape != (clients,) or tuned.dtype != torch.bool):
        raise BadPacket("a message must say who uses a model that was fine-tuned")
    if mixture is not None and mixture.shape != (clients, len(models)):
        raise BadPacket("a message must say in which shares each client mixes the models")
    return models, members


def final_facts(node: Node, packet: Packet, *, own_only: bool) -> dict[str, Any]:
    """What is known of the models that a node keeps."""
    plan = node.app.plan
    return {
        "algorithm": plan.algorithm_name,
        "federation": plan.federation_name,
        "rounds": packet.get("rounds", int),
        "planned": plan.settings.rounds,
        "finished": True,
        "seed": plan.settings.seed,
        **node.facts,
        "task": describe_task(node.task, plan.values()),
        "own_only": own_only,
        "own_left_out": "",
        "samples": None,
        "app": node.app.accepted_fingerprint,
        "run": packet.get("run", str),
    }


def model_folder(file: NodeFile) -> Path:
    """Where a node keeps its final model: nodes that share a memory have folders of their own."""
    own = hashlib.sha256(f"{file.data}\n{file.share}".encode()).hexdigest()[:8]
    return Path(file.memory) / f"model-{own}"


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds anything but what a run before left."""
    if folder.is_dir() and any(folder.iterdir()):
        try:
            read_models(folder / MODELS)
        except CheckpointError as error:
            raise DataError(f"{folder} must be left to coterie: {error}") from error


def load_final_models(file: NodeFile, app: App | None) -> Predictor:
    """The models that the last run left on a node; refuse those of another app."""
    folder = model_folder(file)
    if not (folder / MODELS).is_file():
        raise SettingError(
            f"the node has no model yet: it keeps one in {folder} when a run that it took part in "
            "is complete"
        )
    found = load_run(folder)
    if app is not None and found.kept.facts.get("app") != app.accepted_fingerprint:
        raise SettingError(
            f"the model of this node is of another app: it was left by the run "
            f"{found.kept.facts.get('run')} of {found.kept.facts['algorithm']}"
        )
    return found
