"""How a node scores models: every client on its own data. What they predict stays with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.cohort import Cohort
from coterie.engine.simulator import Simulator
from coterie.evaluation.client_map import MOST_MODELS, losses_or_gradients
from coterie.evaluation.personal import FineTuning
from coterie.evaluation.quality import measure_quality
from coterie.evaluation.scoring import scores_by_label, use_tuned
from coterie.evaluation.sums import sum_scores
from coterie.flower.quality import split_quality
from coterie.flower.wire import BadPacket, Packet, decode_arguments

if TYPE_CHECKING:
    from coterie.flower.node import Node


def score_clients(node: Node, packet: Packet, step: Any) -> dict[str, Tensor]:
    """Sums that say how well models serve the clients of a message, and what places them on a map.

    step  adapts a model to a client, labels its samples or chooses, where the message names one
    """
    ids, train = node.ids, node.simulators["train"]
    use, drawn = packet.get("use", str), packet.get("map", str)
    extra = decode_arguments(packet, ids)
    on = node.simulator(packet, "part")
    tuning = node.fine_tuning if packet.get("tune", bool) else None
    if use == "choose":
        return score_choices(node, packet, partial(step, **extra), on, tuning)
    if packet.header.get("quality"):
        adapt = None if step is None else partial(step, **extra)
        return judge_models(node, packet, on, adapt, tuning)
    models, cluster = packet.tensor("models"), packet.tensor("cluster")

    def score_labels(cohort: Cohort) -> tuple[Tensor, ...]:
        found = step(cohort, models=models, **extra)
        counts = count_clusters(found, cohort, len(models), packet.get("classes", int))
        return scores_by_label(cohort, models, found).sum(0), counts

    def score_models(cohort: Cohort) -> tuple[Tensor, ...]:
        place = torch.searchsorted(ids, cohort.ids)
        if "mixture" in packet.tensors:
            return (cohort.score_mixture(models, packet.tensor("mixture")[place]),)
        own = models[cluster[place]]
        if step is not None:
            own = step(train.cohort(cohort.ids, 0, (train.seed, "adapt")), model=own, **extra)
        return (cohort.score(own),)

    def score_tuned(cohort: Cohort) -> tuple[Tensor, ...]:
        assert tuning is not None
        own = train.cohort(cohort.ids, 0, (train.seed, "adapt"))
        adapt = None if step is None else partial(step, **extra)
        model = models[cluster[torch.searchsorted(ids, cohort.ids)]]
        scores = tuning.score(own, cohort, model, adapt)
        return scores.tuned, scores.untuned, scores.moved.nan_to_num(nan=torch.inf)

    def map_rows(cohort: Cohort) -> tuple[Tensor, ...]:
        rows = losses_or_gradients(cohort, compared, train.seed, drawn == "losses")
        # A gradient of few samples tells what they are; nothing takes the place of it.
        few = cohort.size < node.file.map_samples
        return (rows.masked_fill((few | (not node.file.map))[:, None], torch.nan),)

    too_many = drawn == "losses" and len(models) > MOST_MODELS
    if too_many or drawn not in ("", "losses", "gradients"):
        raise BadPacket(f"a map is drawn from gradients, or losses under {MOST_MODELS} models")
    # Gradients are taken at a model that the seed of the app draws and no server chooses: however
    # often it asks, it is told the same, and fewer numbers than the client has.
    compared = models if drawn == "losses" else map_model(node)
    if tuning is not None:
        scores = compute_by_chunk(on, ids, "score", score_tuned)
        return dict(zip(("scores", "untuned", "moved"), scores, strict=True))
    found = compute_by_chunk(on, ids, "score", score_labels if use == "label" else score_models)
    answer = dict(zip(("scores", "counts"), found, strict=False))
    if drawn:
        (answer["map"],) = compute_by_chunk(train, ids, "map", map_rows)
    return answer


def map_model(node: Node) -> Tensor:
    """The model [1, d] at which the clients of an app are compared by their gradients."""
    return node.task.draw(seeds.generator(node.app.plan.settings.seed, "map"))[None]


def score_choices(
    node: Node,
    packet: Packet,
    choose: Callable[[Cohort], Any],
    on: Simulator,
    tuning: FineTuning | None,
) -> dict[str, Tensor]:
    """What the scores of the clients of a message add up to, each under the model it chooses.

    tuning  how they fine-tune it first, if they do
    """
    ids, models = node.ids, packet.tensor(packet.get("models", str))
    by = node.simulator(packet, "by")

    def score_models(cohort: Cohort) -> tuple[Tensor, ...]:
        own, train = models[cluster[torch.searchsorted(ids, cohort.ids)]], node.simulators["train"]
        if tuning is not None:
            own = tuning.tune(train.cohort(cohort.ids, 0, (train.seed, "adapt")), own)
        return (cohort.score(own),)

    (cluster,) = compute_by_chunk(by, ids, "choose", lambda cohort: (choose(cohort).cluster,))
    if packet.header.get("quality"):
        chosen = Packet(packet.header, {**packet.tensors, "models": models, "cluster": cluster})
        return judge_models(node, chosen, on, None, tuning)
    (scores,) = compute_by_chunk(on, ids, "score", score_models)
    return sum_scores(node.task, scores, cluster, len(models))._asdict()


def judge_models(
    node: Node,
    packet: Packet,
    on: Simulator,
    adapt: Callable[..., Tensor] | None,
    tuning: FineTuning | None,
) -> dict[str, Tensor]:
    """What the models of a message are worth in full to its clients, as sums over these.

    adapt   how clients make models of their own of them, if they do
    tuning  how clients fine-tune them then, if they do; those that the message calls `tuned`
    """
    ids, train, groups = node.ids, node.simulators["train"], packet.get("groups", int)
    models, cluster = packet.tensor("models"), packet.tensor("cluster")
    shares, tuned = packet.tensors.get("mixture"), packet.tensors.get("tuned")
    group = packet.tensors.get("group", torch.zeros_like(ids))
    if group.shape != ids.shape or bool(((group < 0) | (group >= groups)).any()):
        raise BadPacket(f"the groups of a message must be from 0 to {groups - 1}")
    used = on.samples.sizes[on.locate(ids)] > 0
    nothing = not bool(used.any())
    used[0] |= nothing  # a client without samples shows what sums there are

    def score(cohort: Cohort, _: Tensor) -> Tensor:
        place = torch.searchsorted(ids, cohort.ids)
        if shares is not None:
            return cohort.score_mixture(models, shares[place])
        model, own = models[cluster[place]], train.cohort(cohort.ids, 0, (train.seed, "adapt"))
        if adapt is not None:
            model = adapt(own, model=model)
        if tuning is not None:
            after = tuning.tune(own, model)
            model = use_tuned(model, after, None if tuned is None else tuned[place])
        return cohort.score(model)

    constant = packet.tensors.get("constant")
    sums = measure_quality(
        on, ids[used], group[used], groups, score, constant=constant, exact=False
    )
    tensors = split_quality(sums)
    return {n: torch.zeros_like(t) for n, t in tensors.items()} if nothing else tensors


def compute_by_chunk(
    simulator: Simulator,
    ids: Tensor,
    purpose: str,
    compute: Callable[[Cohort], tuple[Tensor, ...]],
) -> list[Tensor]:
    """What `compute` returns for clients `ids`, in their order, some at a time."""
    chunks = list(simulator.chunks(ids))
    order = torch.cat(chunks).argsort()
    parts = [compute(simulator.cohort(chunk, 0, (simulator.seed, purpose))) for chunk in chunks]
    return [torch.cat(column)[order] for column in zip(*parts, strict=True)]


def count_clusters(found: Tensor, cohort: Any, models: int, classes: int) -> Tensor:
    """How many samples of each true cluster each found cluster holds, [m, models, classes].

    Where targets are no clusters, all samples count as of the first.
    """
    tables = []
    for row, (_, y) in zip(found, cohort, strict=True):
        true = torch.zeros_like(row[: len(y)]) if y.is_floating_point() else y
        pairs = row[: len(y)] * classes + true
        tables.append(torch.bincount(pairs, minlength=models * classes).view(models, classes))
    return torch.stack(tables)
