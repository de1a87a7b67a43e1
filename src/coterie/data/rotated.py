"""Rotated images: the clients of a cluster hold images turned by the same angle.

Section 6.2 of the IFCA paper. Each rotation takes its own permutation of all training images and
cuts it into clients, so every image occurs once in every rotation. Pixels lie in 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError, at_least
from coterie.data.federation import Federation, Samples, split_rows
from coterie.data.sources import mnist
from coterie.models import mlp
from coterie.tasks import Classification


@dataclass(frozen=True, kw_only=True)
class RotatedDigits:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, turned by multiples of 90 degrees."""

    clients: int = 80  # clients m in all
    samples: int = 0  # samples of each client, training and test; 0: as many as there are
    rotations: int = 4  # true clusters, 1 to 4: turned by 0, 90, 180, 270 degrees
    train_share: float = 0.8  # share of a client's samples that it trains on
    hidden: int = 100  # width of the network's hidden layer

    suggests: ClassVar[dict[str, Any]] = {"k": 4, "lr": 0.1, "steps": 10, "rounds": 60}

    def __post_init__(self) -> None:
        check_rotated(self)
        if not 0 < self.train_share < 1:
            raise SettingError(
                f"`train_share` of RotatedDigits must lie between 0 and 1, got {self.train_share:g}"
            )

    def build(self, seed: int) -> Federation:
        digits = load_digits()
        images = torch.from_numpy(digits.images).float() / 16
        labels = torch.from_numpy(digits.target)
        samples, cluster = dealt(
            self, images, labels, seed, at_least_per_client=2, source="rotated-digits"
        )
        train, test = [], []
        for i in range(len(samples)):
            x, y = samples.client(i)
            rows = split_rows(len(y), self.train_share, seeds.generator(seed, "split", i))
            train.append((x[rows[0]], y[rows[0]]))
            test.append((x[rows[1]], y[rows[1]]))
        return Federation(Samples.of(train), Samples.of(test), cluster, name="rotated-digits")

    def task(self) -> Classification:
        return Classification(mlp(64, self.hidden, 10))


@dataclass(frozen=True, kw_only=True)
class RotatedMnist:
    """MNIST turned by multiples of 90 degrees; tested on machines of their own, as in the paper."""

    clients: int = 1200  # clients m in all; the paper has 4800, 2400 and 1200
    samples: int = 0  # training samples n of each client; 0: as many as there are
    rotations: int = 4  # true clusters, 1 to 4: turned by 0, 90, 180, 270 degrees
    hidden: int = 200  # width of the network's hidden layer

    suggests: ClassVar[dict[str, Any]] = {"k": 4, "lr": 0.1, "steps": 10, "rounds": 300}

    def __post_init__(self) -> None:
        check_rotated(self)

    def build(self, seed: int) -> Federation:
        train_images, train_labels = mnist("train")
        train, cluster = dealt(
            self, train_images, train_labels, seed, at_least_per_client=1, source="rotated-mnist"
        )
        # Test machines of the same size, contiguous pieces of the test images in their own order.
        size = int(train.sizes[0])
        images, labels = mnist("test")
        machines = max(1, len(labels) // size)
        cut = min(size, len(labels)) * machines
        turned = [(turn(images[:cut], r), labels[:cut]) for r in range(self.rotations)]
        test = Samples(
            torch.cat([x for x, _ in turned]),
            torch.cat([y for _, y in turned]),
            torch.arange(machines * self.rotations + 1) * (cut // machines),
        )
        test_cluster = torch.arange(self.rotations).repeat_interleave(machines)
        return Federation(
            train, test, cluster, unseen=True, test_cluster=test_cluster, name="rotated-mnist"
        )

    def task(self) -> Classification:
        return Classification(mlp(784, self.hidden, 10))


def check_rotated(settings: RotatedDigits | RotatedMnist) -> None:
    """The rules that rotated federations share."""
    at_least(settings, "clients", 1)
    at_least(settings, "samples", 0)
    at_least(settings, "hidden", 1)
    at_least(settings, "rotations", 1)
    if settings.rotations > 4:
        raise SettingError(
            f"`rotations` of {type(settings).__name__} must be at most 4, got {settings.rotations}"
        )
    if settings.clients < settings.rotations:
        raise SettingError(
            f"`clients` of {type(settings).__name__} must be at least `rotations`, "
            f"{settings.rotations}, got {settings.clients}"
        )


def dealt(
    settings: RotatedDigits | RotatedMnist,
    images: Tensor,
    labels: Tensor,
    seed: int,
    *,
    at_least_per_client: int,
    source: str,
) -> tuple[Samples, Tensor]:
    """Turned images dealt out to clients, and the rotation of each client."""
    m, rotations = settings.clients, settings.rotations
    per_rotation = torch.bincount(torch.arange(m) % rotations)  # clients in each
    busiest = int(per_rotation.max())
    n = settings.samples or len(labels) // busiest
    if n < at_least_per_client or n * busiest > len(labels):
        need = busiest * max(n, at_least_per_client)
        raise SettingError(
            f"{source} has {len(labels)} samples in each rotation, too few for {busiest} clients "
            f"of {max(n, at_least_per_client)} samples each, which need {need}"
        )
    x, y = [], []
    for r, count in enumerate(per_rotation.tolist()):
        order = torch.randperm(len(labels), generator=seeds.generator(seed, "deal", r))
        rows = order[: count * n]
        x.append(turn(images[rows], r))
        y.append(labels[rows])
    cluster = torch.arange(rotations).repeat_interleave(per_rotation)
    return Samples(torch.cat(x), torch.cat(y), torch.arange(m + 1) * n), cluster


def turn(images: Tensor, quarters: int) -> Tensor:
    """Images [n, h, w] turned by so many quarters, as rows of pixels [n, h w]."""
    return torch.rot90(images, quarters, (1, 2)).flatten(1)
