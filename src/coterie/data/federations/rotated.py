"""Rotated images: the clients of a cluster hold images rotated by the same angle.

Section 6.2 of the IFCA paper. Each rotation takes its own permutation of all training images and
cuts it into clients, so every image occurs once in every rotation. Pixels of the large sets are
kept as bytes, which a task divides by 255; those of the digits lie in 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, at_least_as_many, between, in_range
from coterie.data import sources
from coterie.data.federation import Federation, Samples, select_federation, split_parts

Load = Callable[[str], tuple[Tensor, Tensor]]  # part -> images [n, h, w, ...], labels [n]


@dataclass(frozen=True, kw_only=True)
class RotatedMnist(Settings):
    """MNIST rotated by multiples of 90 degrees, tested on other machines, as in the paper."""

    clients: int = setting(1200, "clients m in all; the paper has 4800, 2400 and 1200", at_least(1))
    samples: int = setting(0, "training samples n of each client; 0: all there are", at_least(0))
    rotations: int = setting(4, "true clusters: by 0, 90, 180, 270 degrees", in_range(1, 4))

    class_count: ClassVar[int] = 10
    pixel_scale: ClassVar[float] = 255
    resplits: ClassVar[bool] = False  # the sources' own test part is kept
    suggests: ClassVar[dict[str, Any]] = dict(
        k=4, lr=0.1, steps=10, rounds=300, network="mlp", hidden=200
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_as_many(self, "clients", "rotations")

    def build(self, seed: int) -> Federation:
        return rotated_federation(self, sources.load_mnist, seed, name="rotated-mnist")


@dataclass(frozen=True, kw_only=True)
class RotatedFashion(RotatedMnist):
    """Fashion-MNIST rotated by multiples of 90 degrees, split like rotated MNIST."""

    def build(self, seed: int) -> Federation:
        return rotated_federation(self, sources.load_fashion_mnist, seed, name="rotated-fashion")


@dataclass(frozen=True, kw_only=True)
class RotatedCifar(RotatedMnist):
    """CIFAR-10 upright and upside down, with two clusters as in the IFCA paper."""

    clients: int = setting(200, "clients m in all", at_least(1))
    rotations: int = setting(2, "true clusters, 1, 2 (by 180 degrees) or 4", in_range(1, 4))

    suggests: ClassVar[dict[str, Any]] = dict(
        k=2,
        lr=0.25,
        decay=0.99,
        epochs=5,
        batch=50,
        fraction=0.1,
        rounds=600,
        start="reject",
        network="cifar-cnn",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotations == 3:
            raise SettingError("`rotations` of RotatedCifar must be 1, 2 or 4, got 3")

    def build(self, seed: int) -> Federation:
        return rotated_federation(self, sources.load_cifar10, seed, name="rotated-cifar")


@dataclass(frozen=True, kw_only=True)
class RotatedDigits(RotatedMnist):
    """scikit-learn's 1,797 digits of 8 x 8 pixels, rotated by multiples of 90 degrees."""

    clients: int = setting(80, "clients m in all", at_least(1))
    samples: int = setting(0, "training and test samples of each client; 0: all", at_least(0))
    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    pixel_scale: ClassVar[float] = 1.0
    resplits: ClassVar[bool] = True  # another seed splits the same samples anew
    suggests: ClassVar[dict[str, Any]] = dict(
        k=4, lr=0.1, steps=10, rounds=60, network="mlp", hidden=100
    )

    def build(self, seed: int) -> Federation:
        whole, cluster = split_rotated_images(self, *sources.load_digits(), seed, fewest=2)
        parts = torch.arange(len(whole.y)).split(whole.sizes.tolist())
        train, test = split_parts(parts, self.train_share, seed)
        return select_federation(
            self, whole.x, whole.y, train, test, cluster=cluster, name="rotated-digits"
        )


def rotated_federation(settings: RotatedMnist, load: Load, seed: int, *, name: str) -> Federation:
    """Training machines, and test machines of the same size that are unseen in training."""
    train, cluster = split_rotated_images(settings, *load("train"), seed, fewest=1)
    # Contiguous pieces of the test images in their own order.
    size = int(train.sizes[0])
    images, labels = load("test")
    machines = max(1, len(labels) // size)
    cut = min(size, len(labels)) * machines
    images_by_rotation = [
        rotate(images[:cut], quarters) for quarters in quarter_turns(settings.rotations)
    ]
    test = Samples(
        torch.cat(images_by_rotation),
        labels[:cut].repeat(settings.rotations),
        torch.arange(machines * settings.rotations + 1) * (cut // machines),
    )
    test_cluster = torch.arange(settings.rotations).repeat_interleave(machines)
    return Federation(
        train,
        test,
        cluster,
        unseen=True,
        test_cluster=test_cluster,
        name=name,
        class_count=settings.class_count,
        scale=settings.pixel_scale,
    )


def split_rotated_images(
    settings: RotatedMnist, images: Tensor, labels: Tensor, seed: int, *, fewest: int
) -> tuple[Samples, Tensor]:
    """Rotated images split among clients, and the rotation of each client."""
    m, rotations = settings.clients, settings.rotations
    per_rotation = torch.bincount(torch.arange(m) % rotations)  # clients in each
    busiest = int(per_rotation.max())
    if settings.samples and settings.samples < fewest:
        raise SettingError(
            f"`samples` of {type(settings).__name__} must be at least {fewest}, "
            f"got {settings.samples}"
        )
    n = settings.samples or len(labels) // busiest
    if n < fewest or n * busiest > len(labels):
        each = max(n, fewest)
        raise SettingError(
            f"{type(settings).__name__} has {len(labels)} samples in each rotation, too few for "
            f"{busiest} clients of {each} samples each, which need {busiest * each}"
        )
    x, y = [], []
    for r, (count, quarters) in enumerate(
        zip(per_rotation.tolist(), quarter_turns(rotations), strict=True)
    ):
        order = torch.randperm(len(labels), generator=seeds.generator(seed, "deal", r))
        rows = order[: count * n]
        x.append(rotate(images[rows], quarters))
        y.append(labels[rows])
    cluster = torch.arange(rotations).repeat_interleave(per_rotation)
    return Samples(torch.cat(x), torch.cat(y), torch.arange(m + 1) * n), cluster


def quarter_turns(rotations: int) -> list[int]:
    """Quarter turns of each rotation: two rotations are upright and upside down."""
    return [0, 2] if rotations == 2 else list(range(rotations))


def rotate(images: Tensor, quarters: int) -> Tensor:
    """Images [n, h, w] or [n, h, w, 3] rotated by so many quarter turns."""
    return torch.rot90(images, quarters, (1, 2))
