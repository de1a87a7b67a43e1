"""Normalising flows: networks that give the log-probability of every sample.

A flow is an invertible map z = f(x) to standard normal noise, written in the density direction:

    log p(x) = log N(f(x); 0, I) + log |det df/dx|

    linear-flow   f(x) = A u + c: any Gaussian, which is all that clusters of a known shape need
    realnvp       f = couplings one after another; each changes some of the numbers by what it sees
                  of others, y = x exp(s) + t, so that its determinant is a sum and its inverse easy
                  (L. Dinh, J. Sohl-Dickstein, S. Bengio: Density estimation using Real NVP,
                  https://arxiv.org/abs/1605.08803)

Samples are first centred and divided by one number, u = (x - shift) / scale. Both are buffers of
the network that begin with 0 and 1: who knows the data may set them (`Density.with_scaling`).
Images come with pixels in 0 to 1, of which RealNVP takes the logits before that.

In the density direction samples that lie in a subspace do no harm: A grows without end along the
directions in which they do not vary, but only with the root of the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, one_of
from coterie.networks.couplings import Coupling, ImageCoupling, PartCoupling, partition
from coterie.networks.mlp import feature_count

ALPHA = 0.05  # pixels are squeezed into ALPHA to 1 - ALPHA before their logits are taken


@dataclass(frozen=True, kw_only=True)
class LinearFlow(Settings):
    """A linear flow, which gives log-probabilities: a Gaussian distribution of any shape."""

    matrix: str = setting(
        "identity",
        "what A begins with; normal: random entries of deviation 1 / sqrt(features)",
        one_of("identity", "normal"),
    )

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The flow on flattened samples; outputs are of no account."""
        return LinearFlowModule(shape, drawn=self.matrix == "normal")


@dataclass(frozen=True, kw_only=True)
class RealNvp(Settings):
    """RealNVP, a flow that gives log-probabilities, of vectors or of grey images."""

    couplings: int = setting(8, "affine couplings, one after another", at_least(1))
    masks: str = setting(
        "cyclic",
        "what a coupling sees and changes; cyclic: a quarter and the next one (of images a "
        "quadrant), checkerboard: every other number and the rest, random: changing halves",
        one_of("cyclic", "checkerboard", "random"),
    )
    nets: str = setting(
        "mlp", "networks inside the couplings; conv: of images only", one_of("mlp", "conv")
    )
    hidden: int = setting(64, "width of the two hidden layers of mlp", at_least(1))
    channels: int = setting(24, "channels of conv", at_least(1))
    blocks: int = setting(3, "residual blocks of conv, each two 3 x 3 convolutions", at_least(1))
    norm: str = setting("none", "normalisation inside conv", one_of("none", "batch"))

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The flow; outputs are of no account."""
        features, image = feature_count(shape), len(shape) == 2
        if len(shape) > 2:
            raise SettingError(f"realnvp takes vectors and grey images, got samples of {shape}")
        if self.nets == "conv" and (not image or any(side % 2 for side in shape)):
            raise SettingError(
                f"`nets` of RealNvp must be mlp for samples that are not images with an even "
                f"number of rows and columns, got conv for {list(shape)}"
            )
        pairs, parts = self.pairs(features), partition(self.masks, shape)
        inputs = (StandardiseLogits if image else Standardise)(features)
        if self.nets == "conv":
            sizes = shape[0], self.channels, self.blocks, self.norm == "batch"
            images = [ImageCoupling(pair, parts, *sizes) for pair in pairs]
            return RealNvpModule(inputs, images, torch.arange(features), shape)
        vectors = [PartCoupling(pair, parts, self.hidden) for pair in pairs]
        return RealNvpModule(inputs, vectors, torch.cat(parts), shape)

    def pairs(self, features: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The parts that each coupling sees, and those that it changes."""
        least = 2 if self.masks == "checkerboard" else 4
        if features < least:
            raise SettingError(
                f"realnvp with masks={self.masks} needs samples of at least {least} numbers, "
                f"got {features}: linear-flow takes any"
            )
        if self.masks == "checkerboard":
            cycle: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((0,), (1,)), ((1,), (0,))]
        elif self.masks == "cyclic":
            cycle = [((j,), ((j + 1) % 4,)) for j in range(4)]
        else:
            halves = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
            cycle = [*halves, *(half[::-1] for half in halves)]
        return [cycle[c % len(cycle)] for c in range(self.couplings)]


class Standardise(nn.Module):
    """u = (x - shift) / scale, with one scale for all features."""

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(()))

    def unscaled(self, x: Tensor) -> Tensor:
        """The numbers [n, features] that are centred and scaled: those of the samples."""
        return x.flatten(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled samples [n, features], and the log-determinants of that, [] or [n]."""
        return (self.unscaled(x) - self.shift) / self.scale, -len(self.shift) * self.scale.log()

    def inverse(self, u: Tensor) -> Tensor:
        """The samples that scaled ones stand for."""
        return u * self.scale + self.shift


class StandardiseLogits(Standardise):
    """The same for the logits of pixels in 0 to 1, logit(alpha + (1 - 2 alpha) x)."""

    def unscaled(self, x: Tensor) -> Tensor:
        """The logits [n, features] of pixels."""
        return squeeze_pixels(x.flatten(1)).logit()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, scaling = super().forward(x)
        squeezed = squeeze_pixels(x.flatten(1))
        slopes = math.log(1 - 2 * ALPHA) - squeezed.log() - (-squeezed).log1p()
        return u, scaling + slopes.sum(1)

    def inverse(self, u: Tensor) -> Tensor:
        """The pixels that scaled logits stand for."""
        return ((super().inverse(u).sigmoid() - ALPHA) / (1 - 2 * ALPHA)).clamp(0, 1)


class LinearFlowModule(nn.Module):
    """The linear flow z = A u + c.

    >>> flow = LinearFlowModule([2])
    >>> math.isclose(flow(torch.zeros(1, 2)).item(), -math.log(2 * math.pi), rel_tol=1e-6)
    True
    """

    def __init__(self, shape: Sequence[int], *, drawn: bool = False) -> None:
        super().__init__()
        features = feature_count(shape)
        noise = torch.randn(features, features) / math.sqrt(features) if drawn else None
        self.A = nn.Parameter(torch.eye(features) if noise is None else noise)
        self.c = nn.Parameter(torch.zeros(features))
        self.inputs = Standardise(features)
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """The log-probability of each sample, [n]."""
        u, slopes = self.inputs(x)
        z = torch.addmm(self.c, u, self.A.T)
        found: Tensor = normal_log_density(z) + torch.linalg.slogdet(self.A).logabsdet + slopes
        return found

    def generate(self, z: Tensor) -> Tensor:
        """The samples [n, ...] that noise [n, features] stands for."""
        u = torch.linalg.solve(self.A, (z - self.c).T).T
        return self.inputs.inverse(u).view(-1, *self.shape)


class RealNvpModule(nn.Module):
    """Couplings one after another, on scaled vectors or on the logits of pixels."""

    order: Tensor

    def __init__(
        self,
        inputs: nn.Module,
        couplings: Sequence[Coupling],
        order: Tensor,
        shape: Sequence[int],
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.couplings = nn.ModuleList(couplings)
        # [features] in which couplings see the numbers; not part of a model, it is in all the same
        self.register_buffer("order", order, persistent=False)
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """The log-probability of each sample, [n]."""
        u: Tensor
        u, total = self.inputs(x)
        parts = self.split(u[:, self.order])
        for coupling in self.couplings:
            parts, slopes = coupling(parts)
            total = total + slopes
        found: Tensor = normal_log_density(torch.cat(parts, 1)) + total
        return found

    def generate(self, z: Tensor) -> Tensor:
        """The samples [n, ...] that noise [n, features] stands for."""
        parts = self.split(z)
        for coupling in reversed(self.couplings):
            parts = coupling.inverse(parts)  # type: ignore[operator]
        u = torch.cat(parts, 1)[:, self.order.argsort()]
        x: Tensor = self.inputs.inverse(u)  # type: ignore[operator]
        return x.view(-1, *self.shape)

    def split(self, u: Tensor, axis: int = -1) -> list[Tensor]:
        """Numbers in the order of the couplings along `axis`, as the parts that these take."""
        sizes: list[int] = self.couplings[0].sizes  # type: ignore[assignment]
        return list(u.split(sizes, axis))


def squeeze_pixels(x: Tensor) -> Tensor:
    """Pixels in 0 to 1 that keep away from both ends, so that their logits are finite."""
    return ALPHA + (1 - 2 * ALPHA) * x


def normal_log_density(z: Tensor) -> Tensor:
    """The log-density [n] of the standard normal distribution at points [n, d]."""
    return -0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))
