"""Stacks of linear layers for many clients at once, with the gradient written out.

Every client has weights of its own: a weight is [m, out, in], a bias [m, out]. Activations are kept
features first, [m, h, n], for sums over ten classes are several times faster along the samples than
along the classes. The gradient is that of automatic differentiation, to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import torch
from torch import Tensor, nn

from coterie.core.task import Task
from coterie.tensors.activations import relu_gradient

# Layers that act on every number by itself.
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU, nn.LeakyReLU, nn.Identity)


def is_linear_stack(module: nn.Module, sample_axes: int = 1) -> bool:
    """Whether `module` is a stack of linear layers with activations between them.

    It may begin by flattening, which it must for samples of more than one axis. Its
    weights are not frozen, shared or computed by hooks.
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
        and not any(has_hooks(part) for part in module.modules())
        and not list(module.buffers())
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether something is called before or after this layer, as weight normalisation is."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def flat_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `Sequential` modules, in order; the module itself if it is none."""
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module for layer in flat_layers(child)]


class LinearLayers:
    """The network of a task that is a stack of linear layers.

    The first linear layer stands apart from those above it: it is the largest, and what is known of
    its outputs [m, h, n] often takes the place of its weights.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        layers = [layer for layer in flat_layers(task.module) if not isinstance(layer, nn.Flatten)]
        self.has_bias = layers[0].bias is not None  # of the first linear layer
        self.width = task.layout.shapes[0][0]  # of its outputs
        self.first_size = sum(task.layout.sizes[: 1 + self.has_bias])  # coordinates of it
        self.upper_layers = layers[1:]
        self.upper_names = task.layout.names[1 + self.has_bias :]  # of the weights above it

    def split(self, models: Tensor) -> list[Tensor]:
        """The weights of models [m, d], tensor by tensor."""
        return list(self.task.layout.unflatten(models).values())

    def split_first(self, models: Tensor) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The first layer's weights [m, h, f] and bias [m, h], and the weights above it."""
        first, *others = self.split(models)
        return (first, others[0], others[1:]) if self.has_bias else (first, None, others)

    def outputs(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """What the network makes of samples [m, n, ...] with clients' own weights: [m, n, c]."""
        z = self.first_outputs(weights, x.flatten(2))
        return self.upper_outputs(z, weights[1 + self.has_bias :]).mT

    def first_outputs(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """The first layer's outputs [m, h, n] for samples [m, n, f]."""
        if self.has_bias:
            return torch.baddbmm(weights[1][:, :, None], weights[0], x.mT)
        return torch.bmm(weights[0], x.mT)

    def upper_outputs(self, z: Tensor, upper: list[Tensor]) -> Tensor:
        """Outputs [m, c, n] from the first layer's [m, h, n] and the weights above it."""
        return self._forward(z, upper, ScratchBuffers())[-1]

    def _forward(self, z: Tensor, upper: list[Tensor], scratch: ScratchBuffers) -> list[Tensor]:
        """What went into the first of the upper layers, and what came out of each."""
        pending, values = iter(upper), [z]
        for place, layer in enumerate(self.upper_layers):
            if isinstance(layer, nn.Linear):
                z = apply_linear(layer, z, pending)
            elif isinstance(layer, nn.ReLU):
                z = torch.clamp_min(z, 0, out=scratch.like(z, ("out of", place)))
            else:
                z = layer(z)
            values.append(z)
        return values

    def loss_gradient(self, output: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The derivative of losses, weighted by [m, n], by the outputs [m, c, n]."""
        return self.task.output_gradients(output, y).mul_(weight[:, None])

    def upper_gradients(
        self,
        z: Tensor,
        upper: list[Tensor],
        y: Tensor,
        weight: Tensor,
        scratch: ScratchBuffers | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs z [m, h, n], and by the upper weights.

        With `scratch`, the former is overwritten by the next call.
        """
        scratch = scratch or ScratchBuffers()
        *values, after = self._forward(z, upper, scratch)
        slopes = self.loss_gradient(after, y, weight)
        left, found = list(upper), []
        for place, layer in reversed(list(enumerate(self.upper_layers))):
            before = values[place]
            if not isinstance(layer, nn.Linear):
                slopes = activation_gradient(layer, slopes, before, after)
            else:
                if layer.bias is not None:
                    left.pop()
                    found.append(slopes.sum(2))
                found.append(torch.bmm(slopes, before.mT))
                buffer = scratch.like(before, ("into", place))
                slopes = torch.bmm(left.pop().mT, slopes, out=buffer)
            after = before
        return slopes, found[::-1]

    def output_gradients(
        self, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs [m, h, n], and by all weights but its own.

        Of the first layer only the bias is among these.
        """
        z = self.first_outputs(weights, x.flatten(2))
        slopes, upper = self.upper_gradients(z, weights[1 + self.has_bias :], y, weight)
        return slopes, [slopes.sum(2), *upper] if self.has_bias else upper

    def gradients(
        self, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> list[Tensor]:
        """The derivatives of the weighted losses by clients' own weights."""
        slopes, others = self.output_gradients(weights, x, y, weight)
        return [torch.bmm(slopes, x.flatten(2)), *others]


class ScratchBuffers:
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


def apply_linear(layer: nn.Linear, z: Tensor, pending: Iterator[Tensor]) -> Tensor:
    """A linear layer on activations [m, in, n], with the next weights of the clients."""
    weight = next(pending)
    if layer.bias is None:
        return torch.bmm(weight, z)
    return torch.baddbmm(next(pending)[:, :, None], weight, z)


def activation_gradient(layer: nn.Module, slopes: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The derivative by what went into an activation, from that by what came out of it."""
    if isinstance(layer, nn.Identity):
        return slopes
    if isinstance(layer, nn.ReLU):
        return relu_gradient(slopes, after)  # in place: nobody else has these slopes
    if isinstance(layer, nn.Tanh):
        return slopes * (1 - after.square())
    if isinstance(layer, nn.Sigmoid):
        return slopes * (after * (1 - after))
    leaf = before.detach().requires_grad_()
    with torch.enable_grad():
        output = layer(leaf)
    return torch.autograd.grad(output, leaf, slopes)[0]
