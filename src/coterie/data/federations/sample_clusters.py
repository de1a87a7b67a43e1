"""Federations for clustering samples rather than clients: true clusters are per sample.

The experiments of the UIFCA paper. Each client has a home cluster; of its s samples the first s p
come from there and the rest from any cluster at random. p = 0 makes all clients alike, p = 1 gives
each samples of one cluster only. The label of a sample is its true cluster, for scoring; methods
that cluster samples do not look at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.settings import setting
from coterie.core.validate import above, at_least
from coterie.data import sources
from coterie.data.federation import Federation, Samples
from coterie.data.federations.rotated import turn
from coterie.networks import linear
from coterie.tasks import Classification


@dataclass(frozen=True, kw_only=True)
class GaussianClusters:
    """Gaussian clusters in 32 dimensions with centres R Bernoulli(0.5) and unit deviation."""

    clients: int = setting(4, "clients")
    samples: int = setting(1000, "samples of each client")
    groups: int = setting(4, "true clusters of samples")
    heterogeneity: float = setting(
        0.0, "p: share of a client's samples that come from its home cluster"
    )
    features: int = setting(32, "dimension d")
    separation: float = setting(5.0, "R: scale of the centres")

    suggests: ClassVar[dict[str, Any]] = {"k": 4}

    def __post_init__(self) -> None:
        check_unlabelled(self)
        at_least(self, "features", 1)
        above(self, "separation", 0)

    def build(self, seed: int) -> Federation:
        generator = seeds.generator(seed, "gaussian-clusters")
        shape = (self.groups, self.features)
        centre = self.separation * torch.randint(2, shape, generator=generator).float()
        label = homes(self.clients, self.samples, self.groups, self.heterogeneity, generator)
        noise = torch.randn(len(label), self.features, generator=generator)
        return unlabelled(centre[label] + noise, label, self.clients, "gaussian-clusters")

    def task(self, federation: Federation) -> Classification:
        return Classification(linear(self.features, self.groups))


@dataclass(frozen=True, kw_only=True)
class SubspaceClusters:
    """Clusters that are random subspaces: Gaussian coefficients on an orthonormal basis of each."""

    clients: int = setting(4, "clients")
    samples: int = setting(1000, "samples of each client")
    groups: int = setting(4, "true clusters of samples")
    heterogeneity: float = setting(
        0.0, "p: share of a client's samples that come from its home cluster"
    )
    features: int = setting(32, "dimension d")
    rank: int = setting(16, "dimension of each subspace")

    suggests: ClassVar[dict[str, Any]] = {"k": 4}

    def __post_init__(self) -> None:
        check_unlabelled(self)
        at_least(self, "rank", 1)
        if self.rank > self.features:
            raise SettingError(
                f"`rank` of SubspaceClusters must be at most `features`, {self.features}, "
                f"got {self.rank}"
            )

    def build(self, seed: int) -> Federation:
        generator = seeds.generator(seed, "subspace-clusters")
        directions = torch.randn(self.groups, self.features, self.rank, generator=generator)
        basis = torch.linalg.qr(directions).Q  # [groups, d, rank]
        label = homes(self.clients, self.samples, self.groups, self.heterogeneity, generator)
        coefficients = torch.randn(len(label), self.rank, generator=generator)
        x = torch.einsum("ndr,nr->nd", basis[label], coefficients)
        return unlabelled(x, label, self.clients, "subspace-clusters")

    def task(self, federation: Federation) -> Classification:
        return Classification(linear(self.features, self.groups))


@dataclass(frozen=True, kw_only=True)
class MnistDigits:
    """MNIST, the digit being the true cluster of a sample."""

    clients: int = setting(10, "clients")
    samples: int = setting(1000, "samples of each client")
    heterogeneity: float = setting(
        0.0, "p: share of a client's samples that come from its home cluster"
    )

    suggests: ClassVar[dict[str, Any]] = {"k": 10}

    def __post_init__(self) -> None:
        check_unlabelled(self)

    def build(self, seed: int) -> Federation:
        images, digits = sources.load_mnist("train")
        generator = seeds.generator(seed, "mnist-digits")
        label = homes(self.clients, self.samples, 10, self.heterogeneity, generator)
        pools = [torch.nonzero(digits == j).flatten() for j in range(10)]
        return unlabelled(
            images[taken(pools, label, generator)], label, self.clients, "mnist-digits"
        )

    def task(self, federation: Federation) -> Classification:
        return Classification(linear(784, 10), scale=255)


@dataclass(frozen=True, kw_only=True)
class MnistDigitRotations:
    """A digit turned by 0, 90, 180 or 270 degrees, the angle being the true cluster of a sample."""

    clients: int = setting(4, "clients")
    samples: int = setting(1000, "samples of each client")
    heterogeneity: float = setting(
        0.0, "p: share of a client's samples that come from its home cluster"
    )
    digit: int = setting(2, "the digit, in the paper 2, 3, 4 or 5; -1: all ten mixed")

    suggests: ClassVar[dict[str, Any]] = {"k": 4}

    def __post_init__(self) -> None:
        check_unlabelled(self)
        at_least(self, "digit", -1)
        if self.digit > 9:
            raise SettingError(
                f"`digit` of MnistDigitRotations must be at most 9, got {self.digit}"
            )

    def build(self, seed: int) -> Federation:
        images, digits = sources.load_mnist("train")
        if self.digit >= 0:
            images = images[digits == self.digit]
        generator = seeds.generator(seed, "mnist-digit-rotations")
        label = homes(self.clients, self.samples, 4, self.heterogeneity, generator)
        order = torch.randperm(len(images), generator=generator)
        x = images[taken([order] * 4, label, generator)]
        for r in range(4):
            x[label == r] = turn(x[label == r], r)
        return unlabelled(x, label, self.clients, "mnist-digit-rotations")

    def task(self, federation: Federation) -> Classification:
        return Classification(linear(784, 4), scale=255)


def check_unlabelled(settings: Any) -> None:
    """The rules that these federations share."""
    at_least(settings, "clients", 1)
    at_least(settings, "samples", 1)
    if not 0 <= settings.heterogeneity <= 1:
        raise SettingError(
            f"`heterogeneity` of {type(settings).__name__} must lie in 0 to 1, "
            f"got {settings.heterogeneity:g}"
        )
    if hasattr(settings, "groups"):
        at_least(settings, "groups", 1)


def homes(clients: int, samples: int, groups: int, p: float, generator: torch.Generator) -> Tensor:
    """The true cluster of every sample [clients x samples]; client i is at home in i mod groups.

    >>> homes(2, 4, 2, 1.0, torch.Generator()).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    label = torch.randint(groups, (clients, samples), generator=generator)
    label[:, : round(samples * p)] = (torch.arange(clients) % groups)[:, None]
    return label.flatten()


def taken(pools: list[Tensor], label: Tensor, generator: torch.Generator) -> Tensor:
    """A row for every label [n], from that label's pool without repetition while it lasts."""
    rows = torch.empty_like(label)
    for j, pool in enumerate(pools):
        places = torch.nonzero(label == j).flatten()
        if len(places) > len(pool):
            raise SettingError(
                f"{len(places)} samples of cluster {j} are asked for, but there are {len(pool)}"
            )
        rows[places] = pool[torch.randperm(len(pool), generator=generator)[: len(places)]]
    return rows


def unlabelled(x: Tensor, label: Tensor, clients: int, name: str) -> Federation:
    """A federation whose labels are the true clusters of samples; there is no test part."""
    offsets = torch.arange(clients + 1) * (len(label) // clients)
    return Federation(Samples(x, label, offsets), sample_clusters=True, name=name)
