"""Labelled image sets split among clients evenly, by Dirichlet shares, or in shards.

These have no true clusters: the standard ways of making clients differ, for baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.core import seeds
from coterie.core.settings import Settings, setting
from coterie.core.validate import above, at_least, between, one_of
from coterie.data import partition, sources
from coterie.data.federation import Federation, select_federation, split_parts


@dataclass(frozen=True, kw_only=True)
class Digits(Settings):
    """scikit-learn's 1,797 digits, split evenly, by Dirichlet shares, or in shards."""

    clients: int = setting(20, "clients m", at_least(1))
    split: str = setting("dirichlet", "how samples are split", one_of("iid", "dirichlet", "shards"))
    alpha: float = setting(0.5, "Dirichlet concentration; small: clients differ much", above(0))
    shards: int = setting(2, "shards that each client gets", at_least(1))
    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    name: ClassVar[str] = "digits"
    class_count: ClassVar[int] = 10
    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = dict(
        lr=0.1, epochs=1, batch=10, rounds=50, network="mlp", hidden=100
    )

    def build(self, seed: int) -> Federation:
        x, y = self.source()
        generator = seeds.generator(seed, "deal")
        if self.split == "iid":
            parts = partition.iid(y, self.clients, generator)
        elif self.split == "dirichlet":
            parts = partition.dirichlet(y, self.clients, self.alpha, generator)
        else:
            parts = partition.shards(y, self.clients, self.shards, generator)
        train, test = split_parts(parts, self.train_share, seed)
        return select_federation(self, x, y, train, test, name=self.name)

    def source(self) -> tuple[Tensor, Tensor]:
        """All images and labels."""
        return sources.load_digits()


@dataclass(frozen=True, kw_only=True)
class Mnist(Digits):
    """MNIST's 60,000 training digits, split evenly, by Dirichlet shares, or in shards."""

    clients: int = setting(100, "clients m", at_least(1))

    name: ClassVar[str] = "mnist"
    pixel_scale: ClassVar[float] = 255
    suggests: ClassVar[dict[str, Any]] = {**Digits.suggests, "hidden": 200}

    def source(self) -> tuple[Tensor, Tensor]:
        return sources.load_mnist("train")


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """Fashion-MNIST's 60,000 training images, split like MNIST."""

    name: ClassVar[str] = "fashion-mnist"

    def source(self) -> tuple[Tensor, Tensor]:
        return sources.load_fashion_mnist("train")


@dataclass(frozen=True, kw_only=True)
class Cifar10(Mnist):
    """CIFAR-10's 50,000 training images, split like MNIST."""

    name: ClassVar[str] = "cifar10"
    suggests: ClassVar[dict[str, Any]] = dict(
        lr=0.1, epochs=1, batch=10, rounds=50, network="cifar-cnn"
    )

    def source(self) -> tuple[Tensor, Tensor]:
        return sources.load_cifar10("train")
