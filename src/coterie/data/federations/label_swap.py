"""Label swaps: the clients of a cluster exchange two labels, so that no model can serve all.

The image experiments of the FPFC paper: in cluster p (from 0) the labels p and 8 - p change places.
Sattler's CFL experiments swap labels in the same way, with equal (`alpha=0`) shares of the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, between, in_range
from coterie.data import partition, sources
from coterie.data.federation import Federation, select_federation, split_parts


@dataclass(frozen=True, kw_only=True)
class LabelSwapMnist(Settings):
    """MNIST on clients that each swap two labels, another two in every cluster."""

    clients: int = setting(20, "clients m, as many in each cluster", at_least(1))
    groups: int = setting(
        4, "true clusters, 1 to 4: labels 0-8, 1-7, 2-6, 3-5 are swapped", in_range(1, 4)
    )
    alpha: float = setting(1.0, "Dirichlet concentration of classes; 0: all alike", at_least(0))
    samples: int = setting(0, "samples of all clients together; 0: all 60,000", at_least(0))
    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    class_count: ClassVar[int] = 10
    pixel_scale: ClassVar[float] = 255
    suggests: ClassVar[dict[str, Any]] = dict(
        k=4, lr=0.01, epochs=10, batch=100, fraction=0.5, rounds=200, network="mlp", hidden=200
    )

    def build(self, seed: int) -> Federation:
        return label_swap_federation(
            self, *sources.load_mnist("train"), seed, name="label-swap-mnist"
        )


@dataclass(frozen=True, kw_only=True)
class LabelSwapFashion(LabelSwapMnist):
    """Fashion-MNIST on clients that each swap two labels, another two in every cluster."""

    def build(self, seed: int) -> Federation:
        return label_swap_federation(
            self, *sources.load_fashion_mnist("train"), seed, name="label-swap-fashion"
        )


def label_swap_federation(
    settings: LabelSwapMnist, images: Tensor, labels: Tensor, seed: int, *, name: str
) -> Federation:
    """Images split among clients, with two labels of each client's cluster swapped."""
    if settings.samples > len(labels):
        raise SettingError(
            f"`samples` of {type(settings).__name__} must be at most {len(labels)}, "
            f"got {settings.samples}"
        )
    if settings.samples:
        order = torch.randperm(len(labels), generator=seeds.generator(seed, "choose"))
        images, labels = images[order[: settings.samples]], labels[order[: settings.samples]]
    generator = seeds.generator(seed, "deal")
    if settings.alpha:
        parts = partition.dirichlet(labels, settings.clients, settings.alpha, generator)
    else:
        parts = partition.iid(labels, settings.clients, generator)
    cluster = torch.arange(settings.clients) * settings.groups // settings.clients
    swapped = labels.clone()
    for p, part in zip(cluster.tolist(), parts, strict=True):
        swapped[part] = swap_labels(labels[part], p, 8 - p)
    train, test = split_parts(parts, settings.train_share, seed)
    return select_federation(settings, images, swapped, train, test, cluster=cluster, name=name)


def swap_labels(labels: Tensor, one: int, other: int) -> Tensor:
    """Labels with two of them exchanged.

    >>> swap_labels(torch.tensor([0, 1, 8]), 0, 8).tolist()
    [8, 1, 0]
    """
    return torch.where(labels == one, other, torch.where(labels == other, one, labels))
