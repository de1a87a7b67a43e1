"""Linear models and multilayer perceptrons, on flattened samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import nn

from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import one_of

AUTO = "auto"
# The hidden layers for clients of so many training samples or more. With few samples hidden units
# lose more on linear tables than they gain on others.
SIZES: tuple[tuple[int, int | str], ...] = ((4000, "64,32"), (1000, 32), (0, 0))


def read_widths(hidden: int | str) -> list[int]:
    """The widths that a setting names, none for 0; ValueError where it names none."""
    widths = [int(part) for part in str(hidden).split(",")]
    if any(width < 1 for width in widths) and widths != [0]:
        raise ValueError(hidden)
    return [] if widths == [0] else widths


def check_widths(owner: object, name: str) -> None:
    """Whole numbers with commas between, 0 alone, or `auto`."""
    value = getattr(owner, name)
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(value)
        if value != AUTO:
            read_widths(value)
    except ValueError:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be auto, 0 or whole numbers of at least 1 "
            f"with commas between, as in 64,32, got {value}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Linear(Settings):
    """A linear model on flattened samples."""

    bias: bool = setting(True, "whether the model has an intercept")
    weights: str = setting(
        "uniform",
        "how weights are drawn; uniform: as PyTorch does it, bernoulli: zeros and ones",
        one_of("uniform", "bernoulli"),
    )

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The model.

        >>> sum(p.numel() for p in Linear().module([60], 10).parameters())
        610
        """
        features = feature_count(shape)
        if self.weights == "uniform":
            return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs, bias=self.bias))
        # What the layer itself draws is left out: zeros and ones are the first draws of the seed.
        # (`skip_init` would do that too, and imports all of SymPy.)
        with torch.random.fork_rng(devices=[]):
            layer = nn.Linear(features, outputs, bias=self.bias)
        for parameter in layer.parameters():
            parameter.data = torch.randint(2, parameter.shape).float()
        return nn.Sequential(nn.Flatten(), layer)


@dataclass(frozen=True, kw_only=True)
class Mlp(Settings):
    """A multilayer perceptron: hidden layers with ReLU on flattened samples."""

    hidden: int | str = setting(
        200,
        "widths of the hidden layers, as in 200 or 64,32; 0: a linear model; auto: by the number "
        "of training samples of a client",
        check_widths,
    )

    @property
    def widths(self) -> list[int]:
        """The widths of the hidden layers, from the first to the last."""
        return [] if self.hidden == AUTO else read_widths(self.hidden)

    def for_samples(self, samples: int) -> Mlp:
        """The perceptron for clients that train on so many samples each; itself unless auto.

        >>> [Mlp(hidden="auto").for_samples(n).hidden for n in (500, 1500, 5000)]
        [0, 32, '64,32']
        """
        if self.hidden != AUTO:
            return self
        return replace(self, hidden=next(hidden for least, hidden in SIZES if samples >= least))

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The perceptron, or a linear model if there is no hidden layer."""
        widths = self.widths
        if not widths:
            return Linear().module(shape, outputs)
        return mlp(feature_count(shape), widths, outputs)


def feature_count(shape: Sequence[int]) -> int:
    """How many features a sample of this shape has; refuse samples that are not one tensor."""
    if isinstance(shape, dict) or any(side < 0 for side in shape):
        raise SettingError(
            "linear models and perceptrons take samples of one shape: sequences of their own "
            "lengths and several inputs need a network of your own"
        )
    return math.prod(shape)


def mlp(features: int, hidden: int | Sequence[int], outputs: int) -> nn.Module:
    """Hidden layers with ReLU on flattened samples, PyTorch's default initialisation.

    >>> sum(p.numel() for p in mlp(784, 200, 10).parameters())
    159010
    """
    widths = [features, *([hidden] if isinstance(hidden, int) else hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in pairwise(widths):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
