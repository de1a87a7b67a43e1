"""Representations of MNIST's images, made by a network that was trained before: the UIFCA paper's.

Every client has the same network, a RotNet that was trained centrally on rotated MNIST
(`sources/rotnet`), and holds what its last convolution gives for the client's images, in as many
dimensions as are wanted: principal components, found from sums that clients make (`principal`).

The paper does not say which clusters it looks for in them. By its numbers it is the four rotations
of a digit; `clusters=digits` is the other reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, in_range, one_of
from coterie.data import sources
from coterie.data.federation import Federation
from coterie.data.federations.mnist_clusters import draw_rotated
from coterie.data.federations.sample_clusters import (
    draw_clusters,
    sample_cluster_federation,
    sample_pools,
    zero_to_one,
)
from coterie.data.principal import add_sums, leading_components, sum_samples

REPRESENTATION = 128 * 4 * 4  # numbers of one


@dataclass(frozen=True, kw_only=True)
class MnistRepresentations(Settings):
    """MNIST as a network represents it; true clusters are the four rotations of a digit."""

    clusters: str = setting(
        "rotations",
        "what the true clusters are; say k=10 for digits",
        one_of("rotations", "digits"),
    )
    digit: int = setting(
        2, "the digit that is rotated, in the paper 2 to 5; -1: all ten mixed", in_range(-1, 9)
    )
    clients: int = setting(4, "clients", at_least(1))
    samples: int = setting(1500, "samples of each client", at_least(1))
    heterogeneity: float = setting(0.0, "p: share of samples from the home cluster", zero_to_one)
    features: int = setting(
        32, "principal components of the representations", in_range(1, REPRESENTATION)
    )
    whiten: bool = setting(False, "whether each component is scaled to deviation 1, not all alike")
    network_seed: int = setting(0, "seed of the network, which is trained once", at_least(0))

    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = {"k": 4, "network": "linear"}

    @property
    def class_count(self) -> int:
        """The labels are the clusters."""
        return 4 if self.clusters == "rotations" else 10

    def build(self, seed: int) -> Federation:
        images, digits = sources.load_mnist("train")
        network = sources.load_rotnet(images, self.network_seed)
        generator = seeds.generator(seed, "mnist-representations")
        label = draw_clusters(self, generator)
        if self.clusters == "digits":
            pools = [torch.nonzero(digits == digit).flatten() for digit in range(10)]
            drawn = images[sample_pools(pools, label, generator)]
        else:
            one = images if self.digit < 0 else images[digits == self.digit]
            drawn = draw_rotated(one, label, generator)
        x = self.reduce(network.represent(drawn))
        return sample_cluster_federation(self, x, label, name="mnist-representations")

    def reduce(self, representations: Tensor) -> Tensor:
        """Representations [n, d], client after client, along their components [n, features]."""
        clients = representations.split(self.samples)
        components = leading_components(add_sums(map(sum_samples, clients)), self.features)
        return torch.cat([components.project(each, whiten=self.whiten) for each in clients])
