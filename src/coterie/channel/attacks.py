"""Attacks: clients that send what harms the others. For simulation only.

An attack has two parts, which combine: wrong labels (`labels=`, channel/poisoning.py), on which an
adversary trains and chooses its cluster, and what it makes of its update before it is sent:

    boosted        origin + factor (update), factor being the clients of the round; boost=weights
                   multiplies the model itself
    labels         nothing: only its labels are wrong
    sign-flip      origin - factor (update)
    gaussian       origin + N(0, factor^2) in every coordinate
    inner-product  origin - factor (mean update of the honest clients of its cluster)
                   (Xie, Koyejo, Gupta: Fall of Empires, UAI 2020)
    little         origin + mean - factor (standard deviation) of these, in every coordinate
                   (Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019)

The origin is what a client began its training at. With `joins=smallest`, all adversaries go into
the cluster with the fewest honest clients. Adversaries attack in the rounds before the first as
well, by which an algorithm finds its first models; they are served like everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.channel.displacements import (
    Displaced,
    client_clusters,
    displaced_fields,
    replace_fields,
)
from coterie.core import seeds
from coterie.core.clients import Call, Filter
from coterie.core.errors import SettingError
from coterie.core.fields import Role, field_of_role, moves_models
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, between, one_of

ALONE = ("boosted", "sign-flip", "gaussian")  # what an adversary makes of its own update
TOGETHER = ("inner-product", "little")  # what adversaries make of the honest ones'
FACTORS = {"sign-flip": 1.0, "gaussian": 1.0, "inner-product": 1.0, "little": 1.5}


@dataclass(frozen=True, kw_only=True)
class AttackSettings(Settings):
    """Settings of an attack on a run."""

    attack: str = setting(
        "none",
        "what some clients do to harm the others, in simulation only",
        one_of("none", "labels", *ALONE, *TOGETHER),
        added=True,
    )
    attackers: float = setting(
        0.1, "share of the clients that attack, drawn at random", between(0, 1), added=True
    )
    factor: float = setting(
        0.0,
        "strength of an attack; 0: clients of the round (boosted), 1.5 (little), 1",
        at_least(0),
        added=True,
    )
    boost: str = setting(
        "update", "what boosted multiplies", one_of("update", "weights"), added=True
    )
    labels: str = setting(
        "auto",
        "labels of attackers; auto: shuffle with boosted and labels, else keep",
        one_of("auto", "keep", "shuffle", "random", "flip"),
        added=True,
    )
    flip: str = setting(
        "", "which labels are flipped, as in 1:7; empty: y to classes - 1 - y", added=True
    )
    chooses: str = setting(
        "poisoned",
        "labels by which attackers choose a cluster",
        one_of("poisoned", "clean"),
        added=True,
    )
    joins: str = setting(
        "own",
        "cluster of attackers; smallest: all that of the fewest honest clients",
        one_of("own", "smallest"),
        added=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flip:
            flipped_labels(self.flip)

    @property
    def poison(self) -> str:
        """What becomes of the labels of attackers: keep, shuffle, random or flip."""
        if self.attack == "none":
            return "keep"
        if self.labels != "auto":
            return self.labels
        return "shuffle" if self.attack in ("boosted", "labels") else "keep"


def flipped_labels(text: str) -> tuple[int, int]:
    """The two labels of `flip`, as in 1:7.

    >>> flipped_labels("1:7")
    (1, 7)
    """
    one, colon, other = text.partition(":")
    if not (colon and one.isdigit() and other.isdigit()):
        raise SettingError(f"`flip` must be two labels, as in 1:7, got {text}")
    return int(one), int(other)


def draw_attackers(settings: AttackSettings, clients: int, seed: int) -> Tensor | None:
    """Which clients attack, [m]: at least one, by the seed alone; None without an attack."""
    if settings.attack == "none":
        return None
    count = max(1, round(settings.attackers * clients))
    if count >= clients:
        raise SettingError(
            f"`attackers` must leave an honest client, got {settings.attackers:g} of {clients}"
        )
    order = torch.randperm(clients, generator=seeds.generator(seed, "attackers"))
    return torch.zeros(clients, dtype=torch.bool).index_fill(0, order[:count], True)


def attack_filters(
    settings: AttackSettings, attackers: Tensor | None, participants: int
) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
    """The filters of an attack on a call to so many clients: on each chunk, and on all uploads."""
    if attackers is None:
        return (), ()
    factor = settings.factor or FACTORS.get(settings.attack, float(participants))
    alone: tuple[Filter, ...] = ()
    if settings.attack in ALONE:
        alone = (AlteredUpdates(settings.attack, attackers, factor, settings.boost),)
    joins = settings.joins == "smallest"
    if not joins and settings.attack not in TOGETHER:
        return alone, ()
    rule = settings.attack if settings.attack in TOGETHER else ""
    return alone, (Collusion(rule, attackers, factor, joins),)


@dataclass(frozen=True)
class AlteredUpdates:
    """A filter by which each adversary alters its own update."""

    attack: str
    attackers: Tensor  # [m]
    factor: float
    boost: str = "update"

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        wrong = who_attacks(self.attackers, ids)
        if not call.trains or not moves_models(type(upload)) or not bool(wrong.any()):
            return ids, upload
        altered = {
            field.name: self._alter(call, field, ids, wrong)
            for field in displaced_fields(call, ids, upload)
        }
        return ids, replace_fields(upload, altered)

    def _alter(self, call: Call, field: Displaced, ids: Tensor, wrong: Tensor) -> Tensor:
        """The values of a field, those of adversaries altered."""
        own, origin = field.value[wrong], origin_of(field, wrong)
        if self.attack == "gaussian":
            noise = [
                torch.randn(own.shape[1], generator=seeds.generator(*call.address, "noise", i))
                for i in ids[wrong].tolist()
            ]
            altered = origin + self.factor * torch.stack(noise).to(own)
        elif self.attack == "boosted" and self.boost == "weights":
            altered = self.factor * own
        else:
            sign = -1 if self.attack == "sign-flip" else 1
            altered = origin + sign * self.factor * (own - origin)
        value = field.value.clone()
        value[wrong] = altered
        return value


@dataclass(frozen=True)
class Collusion:
    """A filter of all uploads at once, by which adversaries act on what the honest ones send."""

    rule: str  # inner-product, little, or empty: updates stay as they are
    attackers: Tensor  # [m]
    factor: float
    joins: bool = False  # whether all go into the smallest cluster

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        wrong = who_attacks(self.attackers, ids)
        if not bool(wrong.any()) or bool(wrong.all()):  # nobody to act, or to act on
            return ids, upload
        fields = displaced_fields(call, ids, upload)
        before = client_clusters(call, ids, upload)
        after = before
        if self.joins:
            sizes = torch.bincount(before[~wrong])
            smallest = torch.where(sizes > 0, sizes, len(ids) + 1).argmin()
            after = torch.where(wrong, smallest, before)
        values = {field.name: self._collude(field, wrong, before, after) for field in fields}
        own = field_of_role(type(upload), Role.CLUSTER)
        found = replace_fields(upload, values)
        return ids, found if own is None else found._replace(**{own: after})

    def _collude(self, field: Displaced, wrong: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The values of a field, those of adversaries replaced."""
        value = field.value.clone()
        for j in after[wrong].unique().tolist():
            bad, good = wrong & (after == j), ~wrong & (after == j)
            origin = origin_of(field, bad)
            by_cluster = field.models is not None and field.began is not None
            if by_cluster and bool((before[bad] != j).any()) and len(field.models) > j:  # type: ignore[arg-type]
                origin = field.models[j]  # type: ignore[index]
            if self.rule and bool(good.any()):
                moved = field.value[good] - origin_of(field, good)
                mean = moved.double().mean(0)
                if self.rule == "inner-product":
                    change = -self.factor * mean
                else:
                    spread = moved.double().std(0, correction=0)
                    change = mean - self.factor * spread
                value[bad] = (origin + change).to(value.dtype)
            elif not self.rule:
                value[bad] = origin + field.value[bad] - origin_of(field, bad)
        return value


def who_attacks(attackers: Tensor, ids: Tensor) -> Tensor:
    """Which of clients `ids` attack, [a]; unseen ones, numbered behind the others, do not."""
    return torch.isin(ids, torch.nonzero(attackers).flatten())


def origin_of(field: Displaced, chosen: Tensor) -> Tensor | float:
    """What the chosen clients [a] began at, [b, d] or [1, d]; 0 of an update."""
    some = field if field.began is None else field._replace(began=field.began[chosen])
    return some.origin()
