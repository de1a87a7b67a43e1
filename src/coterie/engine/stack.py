"""Stacks of linear layers for many clients at once, with the gradient written out.

Every client has weights of its own: a weight is [m, out, in], a bias [m, out]. Activations are kept
features first, [m, h, n], for sums over ten classes are several times faster along the samples than
along the classes. The gradient is that of automatic differentiation, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# Layers that act on every number by itself.
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Identity)

Slope = Callable[[Tensor], Tensor]  # outputs [m, c, n] -> derivative of the loss by them


class Stack:
    """Layers after a first linear one, which is left to the caller."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = layers

    def outputs(self, z: Tensor, weights: list[Tensor]) -> Tensor:
        """Outputs [m, c, n] from the first layer's [m, h, n] and the weights of the others."""
        pending = iter(weights)
        for layer in self.layers:
            z = linear(layer, z, pending) if isinstance(layer, nn.Linear) else layer(z)
        return z

    def gradients(
        self, z: Tensor, weights: list[Tensor], slope: Slope
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs z [m, h, n], and by the other weights."""
        pending = iter(weights)
        seen = []  # what went into each layer, and what came out of it
        for layer in self.layers:
            before = z
            z = linear(layer, z, pending) if isinstance(layer, nn.Linear) else layer(z)
            seen.append((before, z))
        slopes = slope(z)
        left, found = list(weights), []
        for layer, (before, after) in zip(reversed(self.layers), reversed(seen), strict=True):
            if not isinstance(layer, nn.Linear):
                slopes = through(layer, slopes, before, after)
                continue
            if layer.bias is not None:
                left.pop()
                found.append(slopes.sum(2))
            found.append(torch.bmm(slopes, before.mT))
            slopes = torch.bmm(left.pop().mT, slopes)
        return slopes, found[::-1]


def linear(layer: nn.Linear, z: Tensor, pending: object) -> Tensor:
    """A linear layer on activations [m, in, n], with the next weights of the clients."""
    weight = next(pending)  # type: ignore[call-overload]
    if layer.bias is None:
        return torch.bmm(weight, z)
    return torch.baddbmm(next(pending)[:, :, None], weight, z)  # type: ignore[call-overload]


def through(layer: nn.Module, slopes: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The derivative by what went into an activation, from that by what came out of it."""
    if isinstance(layer, nn.Identity):
        return slopes
    if isinstance(layer, nn.ReLU):
        # In place: nobody else has these slopes.
        passed: Tensor = torch.ops.aten.threshold_backward.grad_input(
            slopes, after, 0, grad_input=slopes
        )
        return passed
    if isinstance(layer, nn.Tanh):
        return slopes * (1 - after.square())
    if isinstance(layer, nn.Sigmoid):
        return slopes * (after * (1 - after))
    leaf = before.detach().requires_grad_()
    with torch.enable_grad():
        output = layer(leaf)
    return torch.autograd.grad(output, leaf, slopes)[0]
