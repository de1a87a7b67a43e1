"""Layers that prepare images inside a network, so that augmentation belongs to local training.

As layers without parameters they follow the network's mode (training or evaluation) and draw from
the client's own seed, like dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
