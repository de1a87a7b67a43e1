"""Attacks and defences of a run: what is refused, who attacks, and how well they are found out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.channel.poisoning import CleanChoice, poison_samples
from coterie.core.algorithm import Algorithm, Info, traits_of
from coterie.core.clients import is_client_step
from coterie.core.errors import SettingError
from coterie.core.population import sends_models
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engine.kernels import kernel_for
from coterie.engine.simulator import Simulator
from coterie.experiment.settings import RunSettings


def check_threats(algorithm: Algorithm[Any], settings: RunSettings, clients: int) -> None:
    """Refuse an attack or a defence that would do nothing, or cannot do what it should."""
    if not (settings.wary or settings.davies_bouldin):
        return
    name = type(algorithm).__name__
    steps = [getattr(type(algorithm), each) for each in dir(type(algorithm))]
    sends = any(is_client_step(step) and sends_models(step) for step in steps)
    for key, value, without in (
        ("attack", settings.attack, ("none", "labels")),
        ("screen", settings.screen, ("none",)),
        ("davies_bouldin", str(settings.davies_bouldin).lower(), ("false",)),
    ):
        if value not in without and not sends:
            raise SettingError(
                f"`{key}` must be {' or '.join(without)} for {name}, whose clients send no model, "
                f"got {value}"
            )
    robust = settings.robust_mean
    if robust is None:
        return
    if not sends or not traits_of(algorithm).averages:
        raise SettingError(
            f"`aggregate` must be mean for {name}, whose server makes no mean by cluster that "
            f"another could take the place of, got {settings.aggregate}"
        )
    count = settings.per_round or max(1, round(settings.fraction * clients))
    robust.check_clients(count)


def attacked_clients(
    federation: Federation, task: Task, settings: RunSettings, attackers: Tensor | None
) -> tuple[Simulator, Simulator]:
    """Simulated clients as they train, with poisoned labels, and the same as they are judged."""
    chunk, device, seed = settings.chunk, settings.device, settings.seed
    classes = federation.outputs if federation.train.has_labels else 0
    if settings.poison != "keep" and not task.predicts:
        raise SettingError(
            f"`labels` must be keep where samples are clustered, got {settings.poison}"
        )
    samples = poison_samples(federation.train, attackers, settings, classes, seed)
    clients = Simulator(samples, task, seed=seed, chunk=chunk, device=device)
    if samples is federation.train:
        return clients, clients
    if settings.chooses == "clean":
        kernel = kernel_for(task, samples.tensor_axes, clients.device)
        clients.kernel = CleanChoice(kernel, classes)
    return clients, clients.with_samples(federation.train)


def detection_scores(
    asked: Tensor, excluded: Sequence[int], attackers: Tensor | None
) -> dict[str, float]:
    """How well the excluded ones of the clients who were asked are those that attack.

    `excluded` is the share of these clients. Where it is known who attacks, `detection_precision`
    is the share of attackers among the excluded (0 if nobody was), `detection_recall` that of the
    excluded among attackers, `false_exclusion` that of the excluded among the honest.

    >>> attackers = torch.tensor([True, True, False, False])
    >>> detection_scores(torch.arange(4), [0, 2], attackers)["detection_recall"]
    0.5
    """
    out = torch.isin(asked, torch.tensor(list(excluded), dtype=torch.long))
    scores = {"excluded": float(out.double().mean()) if len(asked) else 0.0}
    if attackers is None:
        return scores
    bad = attackers[asked]
    caught = float((out & bad).sum())
    if bool(bad.any()):
        scores["detection_precision"] = caught / max(1, int(out.sum()))
        scores["detection_recall"] = caught / int(bad.sum())
    if bool((~bad).any()):
        scores["false_exclusion"] = float((out & ~bad).sum()) / int((~bad).sum())
    return scores


def largest_share(info: Info, attackers: Tensor, left_out: Sequence[int]) -> float | None:
    """The largest share of attackers in a cluster of those who answered and were not left out.

    None where the server does not know who is where.
    """
    if info.cluster is None or not len(info.ids):
        return None
    stay = ~torch.isin(info.ids, torch.tensor(list(left_out), dtype=torch.long))
    cluster, bad = info.cluster[stay], attackers[info.ids[stay]]
    if not len(cluster):
        return None
    sizes = torch.bincount(cluster)
    share = torch.bincount(cluster, weights=bad.double()) / sizes.clamp_min(1)
    return float(share.max())
