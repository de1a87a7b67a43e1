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
from coterie.core.settings import Settings, setting
from coterie.core.validate import above, at_least
from coterie.data.federation import Federation, Samples


def zero_to_one(owner: object, name: str) -> None:
    """The rule of `heterogeneity`: from 0 to 1, which it may reach."""
    value = getattr(owner, name)
    if not 0 <= value <= 1:
        raise SettingError(f"`{name}` of {type(owner).__name__} must lie in 0 to 1, got {value:g}")


@dataclass(frozen=True, kw_only=True)
class SyntheticClusters(Settings):
    """What the federations of synthetic samples share."""

    clients: int = setting(4, "clients", at_least(1))
    samples: int = setting(1000, "samples of each client", at_least(1))
    groups: int = setting(4, "true clusters of samples", at_least(1))
    heterogeneity: float = setting(0.0, "p: share of samples from the home cluster", zero_to_one)

    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = {"k": 4, "network": "linear"}

    @property
    def class_count(self) -> int:
        """The labels are the clusters."""
        return self.groups


@dataclass(frozen=True, kw_only=True)
class GaussianClusters(SyntheticClusters):
    """Gaussian clusters in 32 dimensions with centres R Bernoulli(0.5) and unit deviation."""

    features: int = setting(32, "dimension d", at_least(1))
    separation: float = setting(5.0, "R: scale of the centres", above(0))

    def build(self, seed: int) -> Federation:
        generator = seeds.generator(seed, "gaussian-clusters")
        shape = (self.groups, self.features)
        centre = self.separation * torch.randint(2, shape, generator=generator).float()
        label = draw_clusters(self, generator)
        noise = torch.randn(len(label), self.features, generator=generator)
        x = centre[label] + noise
        return sample_cluster_federation(self, x, label, name="gaussian-clusters")


@dataclass(frozen=True, kw_only=True)
class SubspaceClusters(SyntheticClusters):
    """Clusters that are random subspaces: Gaussian coefficients on an orthonormal basis of each."""

    features: int = setting(32, "dimension d")
    rank: int = setting(16, "dimension of each subspace", at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > self.features:
            raise SettingError(
                f"`rank` of SubspaceClusters must be at most `features`, {self.features}, "
                f"got {self.rank}"
            )

    def build(self, seed: int) -> Federation:
        generator = seeds.generator(seed, "subspace-clusters")
        directions = torch.randn(self.groups, self.features, self.rank, generator=generator)
        basis = torch.linalg.qr(directions).Q  # [groups, d, rank]
        label = draw_clusters(self, generator)
        coefficients = torch.randn(len(label), self.rank, generator=generator)
        x = torch.einsum("ndr,nr->nd", basis[label], coefficients)
        return sample_cluster_federation(self, x, label, name="subspace-clusters")


def draw_clusters(settings: Any, generator: torch.Generator) -> Tensor:
    """The true cluster of every sample [clients x samples]; client i has the home i mod clusters.

    >>> settings = GaussianClusters(clients=2, samples=4, heterogeneity=1.0)
    >>> draw_clusters(settings, torch.Generator()).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    clients, samples, clusters = settings.clients, settings.samples, settings.class_count
    label = torch.randint(clusters, (clients, samples), generator=generator)
    home = torch.arange(clients) % clusters
    label[:, : round(samples * settings.heterogeneity)] = home[:, None]
    return label.flatten()


def sample_pools(pools: list[Tensor], label: Tensor, generator: torch.Generator) -> Tensor:
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


def sample_cluster_federation(
    settings: Any, x: Tensor, label: Tensor, *, name: str, classes: tuple[str, ...] = ()
) -> Federation:
    """A federation whose labels are the true clusters of samples; there is no test part."""
    offsets = torch.arange(settings.clients + 1) * settings.samples
    return Federation(
        Samples(x, label, offsets),
        sample_clusters=True,
        name=name,
        classes=classes,
        class_count=settings.class_count,
        scale=settings.pixel_scale,
    )
