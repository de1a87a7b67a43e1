"""A network called with tensors that are not its own, and differentiated by them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coterie.core.layout import Layout

Tensors = dict[str, Tensor]  # those of a model, by name


def copy_tensors(layout: Layout, tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Copies of the tensors of models: those that are trained, and the rest."""
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    return {name: copies.pop(name).requires_grad_() for name in layout.trained}, copies


def differentiate(loss: Tensor, trained: Tensors) -> list[Tensor]:
    """The derivative of a loss by tensors; zero by one that it does not depend on."""
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(trained.values(), found, strict=True)
    ]


def module_on(device: torch.device, module: nn.Module) -> nn.Module:
    """The network itself, or a copy of it on another device.

    Of its own tensors, those that are no part of a model are used: frozen weights, and buffers that
    are in no state dict.
    """
    return module if device.type == "cpu" else copy.deepcopy(module).to(device)


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Training mode for a while, evaluation mode afterwards."""
    module.train()
    try:
        yield
    finally:
        module.eval()


def flatten_tensors(tensors: list[Tensor]) -> Tensor:
    """Tensors one after another in one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def keep_outside(layout: Layout, model: Tensor, carried: Tensors, moves: Tensors | None) -> Tensors:
    """Carried tensors, those of `model` [d] outside the moving part, whatever the layers did."""
    if moves is None:
        return carried
    before = layout.unflatten(model)
    return {n: torch.where(moves[n].bool(), tensor, before[n]) for n, tensor in carried.items()}
