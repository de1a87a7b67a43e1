"""Affine couplings, what RealNVP is made of, and the masks that say what they see and change.

The numbers of a sample are divided into parts. A coupling sees some of the parts and changes
others, y = x exp(s) + t, where s and t are what a network makes of the parts that it sees:

    checkerboard   two parts, every other number (of an image, its black and white fields)
    cyclic         four parts, of an image its quadrants clockwise: 0 -> 1 -> 2 -> 3 -> 0
    random         four random parts, of which two are seen and two are changed

With cyclic masks a coupling cannot predict a pixel from its neighbours, so that likelihoods tell
shapes apart and not only styles (P. Kirichenko, P. Izmailov, A. G. Wilson: Why Normalizing Flows
Fail to Detect Out-of-Distribution Data, NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LARGEST_LOG_SCALE = 2.0  # of a coupling, so that exp(s) stays within reason
STEEPNESS = 4.0  # the slope of a sigmoid at 0 is one part in so many
RANDOM_PARTS = 0  # seed of the random masks: all models of a run have the same ones

Pair = tuple[tuple[int, ...], tuple[int, ...]]  # parts that are seen, parts that are changed


def partition(masks: str, shape: Sequence[int]) -> list[Tensor]:
    """The parts of a flattened sample, each by its places, in increasing order.

    >>> [part.tolist() for part in partition("cyclic", [2, 2])]
    [[0], [1], [3], [2]]
    >>> [part.tolist() for part in partition("checkerboard", [2, 2])]
    [[0, 3], [1, 2]]
    """
    features = torch.Size(shape).numel()
    place = torch.arange(features).view(*shape)
    if masks == "random":
        generator = torch.Generator().manual_seed(RANDOM_PARTS)
        parts = torch.randperm(features, generator=generator).tensor_split(4)
        return [part.sort().values for part in parts]
    if masks == "checkerboard":
        field = torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij")).sum(0) % 2
        return [place[field == colour].flatten() for colour in (0, 1)]
    if place.dim() == 1:
        return list(place.tensor_split(4))
    (top_left, top_right), (bottom_left, bottom_right) = (
        half.tensor_split(2, 1) for half in place.tensor_split(2)
    )
    return [q.flatten() for q in (top_left, top_right, bottom_right, bottom_left)]


class PartCoupling(nn.Module):
    """A coupling whose s and t are those of a perceptron with two hidden layers.

    It is given the parts [n, f_j] of samples one by one, and gives the same ones but for those that
    it changes: that costs far less than to look numbers up in rows of all.
    """

    def __init__(self, pair: Pair, parts: Sequence[Tensor], hidden: int) -> None:
        super().__init__()
        self.seen, self.changed = pair
        self.sizes = [len(part) for part in parts]
        seen, changed = (sum(self.sizes[j] for j in some) for some in pair)
        self.net = nn.Sequential(
            nn.Linear(seen, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            zeroed(nn.Linear(hidden, 2 * changed)),
        )

    def forward(self, parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Changed samples, and the log-determinants [n]."""
        s, t = self.scale_and_shift(parts)
        after = join(parts, self.changed) * s.exp() + t
        return put_parts(parts, self.changed, after), s.sum(1)

    def inverse(self, parts: list[Tensor]) -> list[Tensor]:
        s, t = self.scale_and_shift(parts)
        return put_parts(parts, self.changed, (join(parts, self.changed) - t) * (-s).exp())

    def scale_and_shift(self, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The log-scales s and the shifts t of what is changed."""
        s, t = self.net(join(parts, self.seen)).chunk(2, 1)
        return bounded(s), t


class ImageCoupling(nn.Module):
    """A coupling whose s and t are those of a convolutional network on the whole image.

    What is not seen is 0 there. The image is folded first: 2 x 2 pixels become four channels. It is
    given samples [n, features] as their only part.
    """

    seen: Tensor
    changed: Tensor

    def __init__(
        self,
        pair: Pair,
        parts: Sequence[Tensor],
        rows: int,
        channels: int,
        blocks: int,
        norm: bool,
    ) -> None:
        super().__init__()
        self.rows = rows  # of the image
        features = sum(map(len, parts))
        self.sizes = [features]
        for name, some in zip(("seen", "changed"), pair, strict=True):
            mask = torch.zeros(features)
            mask[torch.cat([parts[j] for j in some])] = 1
            self.register_buffer(name, mask, persistent=False)
        self.net = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(4, channels, 3, padding=1),
            *(ResidualBlock(channels, norm) for _ in range(blocks)),
            nn.ReLU(),
            zeroed(nn.Conv2d(channels, 8, 3, padding=1)),
            nn.PixelShuffle(2),
        )

    def forward(self, parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Changed samples, and the log-determinants [n]."""
        (u,) = parts
        s, t = self.scale_and_shift(u)
        return [u * s.exp() + t], s.sum(1)

    def inverse(self, parts: list[Tensor]) -> list[Tensor]:
        (u,) = parts
        s, t = self.scale_and_shift(u)
        return [(u - t) * (-s).exp()]

    def scale_and_shift(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The log-scales s and the shifts t of all pixels, 0 for those that are not changed."""
        image = (u * self.seen).view(len(u), 1, self.rows, -1)
        s, t = self.net(image).flatten(2).unbind(1)
        return bounded(s) * self.changed, t * self.changed


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions that are added to what they are given."""

    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.BatchNorm2d(channels)] if norm else []
            layers += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.layers(x)
        return changed


def join(parts: Sequence[Tensor], some: tuple[int, ...], axis: int = -1) -> Tensor:
    """Some of the parts of samples side by side; the numbers of a part are along `axis`."""
    return parts[some[0]] if len(some) == 1 else torch.cat([parts[j] for j in some], axis)


def put_parts(
    parts: list[Tensor], some: tuple[int, ...], value: Tensor, axis: int = -1
) -> list[Tensor]:
    """The parts with other values, side by side in `value`, in the place of some."""
    sizes = [parts[j].shape[axis] for j in some]
    pieces = [value] if len(some) == 1 else value.split(sizes, axis)
    now = dict(zip(some, pieces, strict=True))
    return [now.get(j, part) for j, part in enumerate(parts)]


def bounded(s: Tensor) -> Tensor:
    """Log-scales between two bounds, with slope 1 at 0."""
    return log_scale_of(bend_of(s))


def bend_of(s: Tensor) -> Tensor:
    """Where log-scales come to lie between their bounds, 0 to 1: far faster than a tanh."""
    return (s * (STEEPNESS / (2 * LARGEST_LOG_SCALE))).sigmoid_()


def log_scale_of(bend: Tensor) -> Tensor:
    """The log-scales that lie so far between their bounds."""
    return bend.mul(2 * LARGEST_LOG_SCALE).sub_(LARGEST_LOG_SCALE)


def zeroed(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """A layer that begins with zeros, so that a coupling begins by changing nothing."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


Coupling = PartCoupling | ImageCoupling
