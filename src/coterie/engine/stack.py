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
        self, z: Tensor, weights: list[Tensor], slope: Slope, scratch: Scratch | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs z [m, h, n], and by the other weights.

        With `scratch`, the former is overwritten by the next call.
        """
        scratch = scratch or Scratch()
        pending = iter(weights)
        seen = []  # what went into each layer, and what came out of it
        for place, layer in enumerate(self.layers):
            before = z
            if isinstance(layer, nn.Linear):
                z = linear(layer, z, pending)
            elif isinstance(layer, nn.ReLU):
                z = torch.clamp_min(z, 0, out=scratch.like(z, place))
            else:
                z = layer(z)
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
            slopes = torch.bmm(left.pop().mT, slopes, out=scratch.like(before, -1 - len(left)))
        return slopes, found[::-1]


class Scratch:
    """Room for results that are looked at for a moment, used again by those of the same shape.

    A tensor that was just made lies where the cache has nothing yet.
    """

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}

    def like(self, value: Tensor, place: int) -> Tensor:
        """A tensor of the shape of `value`; the same one for the same `place`."""
        held = self.held.get(place)
        if held is None or held.shape != value.shape or held.dtype != value.dtype:
            held = self.held[place] = torch.empty_like(value, memory_format=torch.contiguous_format)
        return held


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
