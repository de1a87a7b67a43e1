"""Stacks of linear layers for many clients at once, with the gradient written out.

Every client has weights of its own: a weight is [m, out, in], a bias [m, out]. Activations are kept
features first, [m, h, n], for sums over ten classes are several times faster along the samples than
along the classes. The gradient is that of automatic differentiation, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

# Layers that act on every number by itself.
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Identity)

Slope = Callable[[Tensor], Tensor]  # outputs [m, c, n] -> derivative of the loss by them


def is_plain(module: nn.Module, sample_axes: int = 1) -> bool:
    """Whether `module` is a plain stack: linear layers with activations between them.

    It may begin by flattening, which it must for samples of more than one axis. Weights that are
    frozen, shared or computed by hooks are not plain.
    """
    layers = flat_layers(module)
    flattens = isinstance(layers[0], nn.Flatten)
    if isinstance(layers[0], nn.Flatten):
        flattens = layers[0].start_dim == 1 and layers[0].end_dim == -1
        layers = layers[1:]
    weights = list(module.named_parameters(remove_duplicate=False))
    return (
        bool(layers)
        and (flattens or sample_axes == 1)
        and type(layers[0]) is nn.Linear
        and all(type(layer) in (nn.Linear, *ELEMENTWISE) for layer in layers)
        and all(name.endswith(("weight", "bias")) and w.requires_grad for name, w in weights)
        and len({id(weight) for _, weight in weights}) == len(weights)
        and not any(hooked(part) for part in module.modules())
        and not list(module.buffers())
    )


def hooked(module: nn.Module) -> bool:
    """Whether something is called before or after this layer, as weight normalisation is."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def flat_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `Sequential` modules, in order; the module itself if it is none."""
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module for layer in flat_layers(child)]


class Stack:
    """Layers after a first linear one, which is left to the caller."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = layers

    def outputs(self, z: Tensor, weights: list[Tensor]) -> Tensor:
        """Outputs [m, c, n] from the first layer's [m, h, n] and the weights of the others."""
        return self._seen(z, weights, Scratch())[-1]

    def _seen(self, z: Tensor, weights: list[Tensor], scratch: Scratch) -> list[Tensor]:
        """What went into the first of the layers, and what came out of each."""
        pending, seen = iter(weights), [z]
        for place, layer in enumerate(self.layers):
            if isinstance(layer, nn.Linear):
                z = linear(layer, z, pending)
            elif isinstance(layer, nn.ReLU):
                z = torch.clamp_min(z, 0, out=scratch.like(z, ("out of", place)))
            else:
                z = layer(z)
            seen.append(z)
        return seen

    def gradients(
        self, z: Tensor, weights: list[Tensor], slope: Slope, scratch: Scratch | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs z [m, h, n], and by the other weights.

        With `scratch`, the former is overwritten by the next call.
        """
        scratch = scratch or Scratch()
        *seen, after = self._seen(z, weights, scratch)
        slopes = slope(after)
        left, found = list(weights), []
        for place, layer in reversed(list(enumerate(self.layers))):
            before = seen[place]
            if not isinstance(layer, nn.Linear):
                slopes = through(layer, slopes, before, after)
            else:
                if layer.bias is not None:
                    left.pop()
                    found.append(slopes.sum(2))
                found.append(torch.bmm(slopes, before.mT))
                room = scratch.like(before, ("into", place))
                slopes = torch.bmm(left.pop().mT, slopes, out=room)
            after = before
        return slopes, found[::-1]


class Scratch:
    """Room for results that are looked at for a moment, used again by those of the same shape.

    A tensor that was just made lies where the cache has nothing yet.
    """

    def __init__(self) -> None:
        self.held: dict[Hashable, Tensor] = {}

    def like(self, value: Tensor, place: Hashable) -> Tensor:
        """A tensor of the shape of `value`; the same one for the same place in the work."""
        key = place, value.shape, value.dtype
        if key not in self.held:
            self.held[key] = torch.empty_like(value, memory_format=torch.contiguous_format)
        return self.held[key]


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
