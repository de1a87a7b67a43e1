"""The convolutional networks of the papers, and layers that prepare images inside them.

Augmentation belongs to local training: its layers, without parameters, follow the network's mode
(training or evaluation) and draw from the client's own seed, like dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least


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


class ChannelsFirst(nn.Module):
    """Images [n, h, w, c] as [n, c, h, w]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


class RandomCropFlip(nn.Module):
    """A square crop of `size`, standardised image by image.

    In training the place is random and every second image is mirrored; in evaluation it is the
    middle. Standardised: minus the image's mean, divided by its standard deviation (at least
    1/sqrt(numbers in it), so that a plain image does not blow up).

    >>> RandomCropFlip(24).eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 3, 24, 24])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        # Drawn on the CPU, so that a seed gives the same on every device.
        spare = torch.tensor([height - self.size, width - self.size], device="cpu")
        if self.training:
            corner = (torch.rand(n, 2, device="cpu") * (spare + 1)).long()
            mirrored = torch.rand(n, device="cpu") < 0.5
        else:
            corner = (spare // 2).expand(n, 2)
            mirrored = torch.zeros(n, dtype=torch.bool, device="cpu")
        place = torch.arange(self.size, device="cpu")
        rows, columns = corner[:, :1] + place, corner[:, 1:] + place  # [n, size]
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        rows, columns = rows.to(x.device), columns.to(x.device)
        which = torch.arange(n, device=x.device)[:, None, None]
        crop = x.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
        flat = crop.flatten(1)
        floor = flat.shape[1] ** -0.5
        scale = flat.std(1, correction=0).clamp_min(floor)
        standard = (flat - flat.mean(1, keepdim=True)) / scale[:, None]
        return standard.view(crop.shape).permute(0, 3, 1, 2)
