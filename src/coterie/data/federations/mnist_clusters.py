"""Clusters of MNIST's images, by digit or by rotation: the images of the UIFCA paper.

How samples are drawn is in `sample_clusters`. Flows want pixels that are real numbers, so that
bytes may be dequantised, made fewer by means of 2 x 2, or put on a random background, as in figure
4 of the paper. Whatever is drawn for that is drawn once, by the seed of the federation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, in_range, one_of
from coterie.data import sources
from coterie.data.federation import Federation
from coterie.data.federations.rotated import rotate
from coterie.data.federations.sample_clusters import (
    draw_clusters,
    sample_cluster_federation,
    sample_pools,
    zero_to_one,
)

SIDE = 28  # pixels of an image of MNIST
BLACK = 0.01  # what is darker than this is background, as in the paper
BELOW_ONE = 1 - 2**-24  # the largest float32 below 1


def whole_or_half(owner: object, name: str) -> None:
    """The rule of `size`: images as they are, or of half their height and width."""
    value = getattr(owner, name)
    if value not in (SIDE, SIDE // 2):
        raise SettingError(f"`{name}` of {type(owner).__name__} must be 28 or 14, got {value}")


def different_digits(owner: object, name: str) -> None:
    """The rule of `digits`: digits with commas between, each once; or nothing, which is all."""
    value = getattr(owner, name)
    found = value.split(",") if isinstance(value, str) and value else []
    plain = all(digit in "0123456789" and len(digit) == 1 for digit in found)
    if not isinstance(value, str) or not plain or len(set(found)) < len(found):
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be different digits with commas between, "
            f"such as 2,3, got {value}"
        )


@dataclass(frozen=True, kw_only=True)
class MnistClusters(Settings):
    """What the federations of MNIST's images share."""

    clients: int = setting(10, "clients", at_least(1))
    samples: int = setting(1000, "samples of each client", at_least(1))
    heterogeneity: float = setting(0.0, "p: share of samples from the home cluster", zero_to_one)
    size: int = setting(
        SIDE, "height and width of the images; 14: means of 2 x 2 pixels", whole_or_half, added=True
    )
    dequantised: bool = setting(
        False, "whether a pixel is (byte + noise in 0 to 1) / 256, noise drawn once", added=True
    )
    background: str = setting(
        "black",
        "random: pixels below 0.01 are drawn from 0 to 1, once",
        one_of("black", "random"),
        added=True,
    )

    suggests_for: ClassVar[dict[str, dict[str, Any]]] = {
        "uifca": dict(
            network="realnvp",
            optimizer="adam",
            lr=0.001,
            batch=32,
            steps=10,
            fit_rounds=5,
            rounds=40,
            restarts=1,
        )
    }

    @property
    def pixel_scale(self) -> float:
        """What is white: 255 where pixels are bytes still, else 1."""
        plain = self.size == SIDE and not self.dequantised and self.background == "black"
        return 255 if plain else 1


@dataclass(frozen=True, kw_only=True)
class MnistDigits(MnistClusters):
    """MNIST; the digit is the true cluster of a sample."""

    digits: str = setting(
        "", "the digits, with commas between; empty: all ten", different_digits, added=True
    )

    suggests: ClassVar[dict[str, Any]] = {"k": 10, "network": "linear"}

    @property
    def chosen(self) -> list[int]:
        """The digits that are clusters, in their order."""
        return [int(digit) for digit in self.digits.split(",")] if self.digits else [*range(10)]

    @property
    def class_count(self) -> int:
        """The labels are the clusters."""
        return len(self.chosen)

    def build(self, seed: int) -> Federation:
        images, digits = sources.load_mnist("train")
        generator = seeds.generator(seed, "mnist-digits")
        label = draw_clusters(self, generator)
        pools = [torch.nonzero(digits == digit).flatten() for digit in self.chosen]
        x = draw_pixels(self, images[sample_pools(pools, label, generator)], seed)
        names = tuple(map(str, self.chosen)) if self.digits else ()
        return sample_cluster_federation(self, x, label, name="mnist-digits", classes=names)


@dataclass(frozen=True, kw_only=True)
class MnistDigitRotations(MnistClusters):
    """A digit rotated by 0, 90, 180 or 270 degrees; the angle is the true cluster of a sample."""

    clients: int = setting(4, "clients", at_least(1))
    digit: int = setting(2, "the digit, in the paper 2 to 5; -1: all ten mixed", in_range(-1, 9))

    class_count: ClassVar[int] = 4
    suggests: ClassVar[dict[str, Any]] = {"k": 4, "network": "linear"}

    def build(self, seed: int) -> Federation:
        images, digits = sources.load_mnist("train")
        if self.digit >= 0:
            images = images[digits == self.digit]
        generator = seeds.generator(seed, "mnist-digit-rotations")
        label = draw_clusters(self, generator)
        x = draw_pixels(self, draw_rotated(images, label, generator), seed)
        return sample_cluster_federation(self, x, label, name="mnist-digit-rotations")


def draw_rotated(images: Tensor, label: Tensor, generator: torch.Generator) -> Tensor:
    """An image [28, 28] for every label [n], rotated by as many quarter turns as the label says.

    An image may occur in several rotations, but once in each.
    """
    order = torch.randperm(len(images), generator=generator)
    x = images[sample_pools([order] * 4, label, generator)]
    for r in range(4):
        x[label == r] = rotate(x[label == r], r)
    return x


def draw_pixels(settings: MnistClusters, images: Tensor, seed: int) -> Tensor:
    """Images [n, 28, 28] of bytes with the pixels that are wanted: bytes, or floats from 0 to 1.

    Pixels are made fewer first, then dequantised, and then background is found among them.
    """
    if settings.pixel_scale == 255:
        return images
    pixels = images.float()
    if settings.size < SIDE:
        pixels = functional.avg_pool2d(pixels[:, None], 2)[:, 0]
    if settings.dequantised:
        noise = torch.rand(pixels.shape, generator=seeds.generator(seed, "dequantise"))
        pixels = ((pixels + noise) / 256).clamp_max(BELOW_ONE)  # the sum may be rounded up
    else:
        pixels = pixels / 255
    if settings.background == "random":
        fresh = torch.rand(pixels.shape, generator=seeds.generator(seed, "background"))
        pixels = torch.where(pixels < BLACK, fresh, pixels)
    return pixels
