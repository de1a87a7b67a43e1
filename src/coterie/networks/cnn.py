"""The convolutional networks of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least
from coterie.networks.augmentation import ChannelsFirst, RandomCropFlip


@dataclass(frozen=True, kw_only=True)
class FemnistCnn(Settings):
    """LEAF's network for FEMNIST, on images of 28 x 28: two convolutions with pooling, two layers.

    >>> sum(p.numel() for p in FemnistCnn().module([28, 28], 62).parameters())
    6603710
    """

    hidden: int = setting(2048, "width of the last hidden layer", at_least(1))

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, outputs),
        )


@dataclass(frozen=True, kw_only=True)
class CelebaCnn:
    """LEAF's network for CelebA, on images of 84 x 84 x 3: four convolutions, one layer."""

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        blocks: list[nn.Module] = []
        for channels in (3, 32, 32, 32):
            blocks += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.MaxPool2d(2)]
            blocks += [nn.ReLU()]
        return nn.Sequential(ChannelsFirst(), *blocks, nn.Flatten(), nn.Linear(32 * 5 * 5, outputs))


@dataclass(frozen=True, kw_only=True)
class CifarCnn:
    """The IFCA paper's network for CIFAR-10, on images of 32 x 32 x 3 with values in 0 to 1.

    Two convolutions of 5 x 5 with 64 channels, layers of 384 and 192; images are cropped to 24 x 24
    and flipped at random in training.
    """

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        return nn.Sequential(
            ChannelsFirst(),
            RandomCropFlip(24),
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * 6 * 6, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, outputs),
        )
