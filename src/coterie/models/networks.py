"""Linear models and the multilayer perceptron."""

from __future__ import annotations

from torch import nn


def linear(features: int, outputs: int = 1, *, bias: bool = True) -> nn.Module:
    """A linear model on flattened samples.

    >>> sum(p.numel() for p in linear(60, 10).parameters())
    610
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs, bias=bias))


def mlp(features: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer with ReLU on flattened samples, PyTorch's default initialisation.

    >>> sum(p.numel() for p in mlp(784, 200, 10).parameters())
    159010
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
