"""Poisoned labels: what an adversary trains on.

    shuffle   its own labels in another order
    random    labels drawn uniformly from all classes
    flip      y becomes classes - 1 - y, or one label another

Clients choose their cluster by the labels that they train on. With `chooses=clean` an adversary
tells losses and chooses by its right labels. Both are then kept in one number, which the kernel
takes apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.channel.attacks import AttackSettings, flipped_labels
from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.kernel import Descent, Kernel, Minimisation, Seeds
from coterie.core.rows import Rows


def poison_labels(
    y: Tensor, offsets: Tensor, attackers: Tensor, settings: AttackSettings, classes: int, seed: int
) -> Tensor:
    """The labels [N] with those of attackers [m] poisoned, by the seed and the client alone.

    >>> y, offsets = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 3, 6])
    >>> flip = AttackSettings(attack="labels", labels="flip")
    >>> poison_labels(y, offsets, torch.tensor([False, True]), flip, 3, 0).tolist()
    [0, 1, 2, 2, 1, 0]
    """
    if settings.poison == "keep":
        return y
    y = y.clone()
    for i in torch.nonzero(attackers).flatten().tolist():
        own = slice(int(offsets[i]), int(offsets[i + 1]))
        generator = seeds.generator(seed, "poison", i)
        if settings.poison == "shuffle":
            y[own] = y[own][torch.randperm(len(y[own]), generator=generator)]
        elif settings.poison == "random":
            y[own] = torch.randint(classes, (len(y[own]),), generator=generator).to(y.dtype)
        elif settings.flip:
            one, other = flipped_labels(settings.flip)
            if max(one, other) >= classes:
                raise SettingError(
                    f"`flip` must name labels below {classes}, the number of classes, got "
                    f"{settings.flip}"
                )
            y[own] = torch.where(y[own] == one, other, y[own])
        else:
            y[own] = classes - 1 - y[own]
    return y


def join_labels(poisoned: Tensor, clean: Tensor, classes: int) -> Tensor:
    """Labels [N] that hold two: what clients train on, and what they choose by, where these differ.

    >>> both = join_labels(torch.tensor([0, 2]), torch.tensor([0, 1]), 3)
    >>> both.tolist(), trained_labels(both, 3).tolist(), chosen_labels(both, 3).tolist()
    ([0, 8], [0, 2], [0, 1])
    """
    return torch.where(poisoned == clean, clean, classes * (1 + clean) + poisoned)


def trained_labels(y: Tensor, classes: int) -> Tensor:
    return torch.where(y < classes, y, y % classes)


def chosen_labels(y: Tensor, classes: int) -> Tensor:
    return torch.where(y < classes, y, y // classes - 1)


class CleanChoice:
    """A kernel that trains by one of two joined labels, and tells losses by the other."""

    def __init__(self, inner: Kernel, classes: int) -> None:
        self.inner, self.classes = inner, classes

    def _trained(self, rows: Rows) -> Rows:
        return rows._replace(y=trained_labels(rows.y, self.classes))

    def _chosen(self, rows: Rows) -> Rows:
        return rows._replace(y=chosen_labels(rows.y, self.classes))

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        return self.inner.losses(models, self._chosen(rows))

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        return self.inner.sample_losses(models, self._chosen(rows))

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        return self.inner.choose(models, self._chosen(rows))

    def score(self, model: Tensor, rows: Rows) -> Tensor:
        return self.inner.score(model, self._chosen(rows))

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        return self.inner.score_mixture(models, self._chosen(rows), shares)

    def gradient(
        self, model: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        return self.inner.gradient(model, self._trained(rows), seeds, weights)

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        return self.inner.descend(start, self._trained(rows), descent)

    def minimise(self, start: Tensor, rows: Rows, work: Minimisation) -> tuple[Tensor, Tensor]:
        return self.inner.minimise(start, self._trained(rows), work)


def poison_samples(
    samples: Any, attackers: Tensor | None, settings: AttackSettings, classes: int, seed: int
) -> Any:
    """Stored samples (`data.federation.Samples`) as adversaries hold them."""
    if attackers is None or settings.poison == "keep":
        return samples
    if not samples.has_labels:
        raise SettingError(
            "`labels` must be keep where a target is not one label of a class, got "
            f"{settings.poison}"
        )
    poisoned = poison_labels(samples.y, samples.offsets, attackers, settings, classes, seed)
    if settings.chooses == "clean":
        poisoned = join_labels(poisoned, samples.y.to(torch.int64), classes)
    return replace(samples, y=poisoned)
