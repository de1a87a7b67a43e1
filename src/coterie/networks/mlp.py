"""Linear models and the multilayer perceptron, on flattened samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, one_of


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
    """A multilayer perceptron: one hidden layer with ReLU on flattened samples."""

    hidden: int = setting(200, "width of the hidden layer; 0: a linear model", at_least(0))

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The perceptron, or a linear model if there is no hidden layer."""
        if self.hidden == 0:
            return Linear().module(shape, outputs)
        return mlp(feature_count(shape), self.hidden, outputs)


def feature_count(shape: Sequence[int]) -> int:
    """How many features a sample of this shape has; refuse samples that are not one tensor."""
    if isinstance(shape, dict) or any(side < 0 for side in shape):
        raise SettingError(
            "linear models and perceptrons take samples of one shape: sequences of their own "
            "lengths and several inputs need a network of your own"
        )
    return math.prod(shape)


def mlp(features: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer with ReLU on flattened samples, PyTorch's default initialisation.

    >>> sum(p.numel() for p in mlp(784, 200, 10).parameters())
    159010
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
