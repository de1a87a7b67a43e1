"""Descent of one client on an objective of a user's own, which calls the network as it likes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.core.kernel import Descent, Minimisation
from coterie.core.samples import Inputs, Padded
from coterie.core.task import Task
from coterie.engine.kernels.module_calls import (
    Tensors,
    copy_tensors,
    differentiate,
    flatten_tensors,
    keep_outside,
)
from coterie.engine.kernels.objective import ObjectiveTerms


def minimise_one(
    task: Task,
    module: nn.Module,
    model: Tensor,
    x: Any,
    y: Any,
    i: int,
    work: Minimisation,
) -> tuple[Tensor, Tensor]:
    """Where client i with model [d] and samples x, y ends [d], and its optimiser's state [s]."""
    rule, layout = work.rule, task.layout
    descent = Descent(rule, work.steps, None, work.seeds, work.part, weight_decay=work.weight_decay)
    terms = ObjectiveTerms(layout, descent, lead=0)
    trained, carried = copy_tensors(layout, layout.unflatten(model))
    moving = moving_tensors(trained, terms.moves)
    now = list(moving.values())
    optimizer = rule.begin_optimizer()
    if work.state is not None:
        optimizer.restore(work.state[i], now)
    call = caller(task, module, {**trained, **carried})
    for step in range(work.steps[i]):
        batch = torch.arange(len(y), device=y.device)
        if work.batches is not None:
            drawn = work.batches[i][step]
            drawn = drawn[drawn >= 0]
            # All samples stay in their order, as where no batches are drawn: an objective may draw
            # for one sample after another.
            batch = drawn if len(drawn) < len(y) else batch
        value = work.objective(call, x[batch], y[batch], work.generators[i])
        found = differentiate(scalar(value), moving)
        with torch.no_grad():
            found = terms.gradients(list(moving), found, now)
            for tensor, direction in zip(now, optimizer.directions(found), strict=True):
                tensor -= rule.lr * direction
    carried = keep_outside(layout, model, carried, terms.moves)
    end = flatten_tensors([*trained.values(), *carried.values()]).to(model.dtype)
    return end, optimizer.to_vector(now).detach()


def moving_tensors(trained: Tensors, moves: Tensors | None) -> Tensors:
    """The trained tensors with a coordinate that moves; the others ask for no gradient."""
    moving = {n: t for n, t in trained.items() if moves is None or bool(moves[n].any())}
    if not moving:
        raise SettingError("the part that is to be minimised over has no trained parameters")
    for name, tensor in trained.items():
        tensor.requires_grad_(name in moving)
    return moving


def caller(task: Task, module: nn.Module, tensors: Tensors) -> Callable[..., Any]:
    """What an objective calls: the network, or a submodule by its name, with these tensors.

    Samples that are more than one tensor are arguments as the task has it.
    """

    def call(name: str | None, *arguments: Any, **options: Any) -> Any:
        if any(isinstance(each, Padded | Inputs) for each in arguments):
            parts = (
                task.arguments(a) if isinstance(a, Padded | Inputs) else (a,) for a in arguments
            )
            arguments = tuple(chain.from_iterable(parts))
        try:
            part = module if name is None else module.get_submodule(name)
        except AttributeError as error:
            raise SettingError(f"the network has no part named {name}") from error
        start = f"{name}." if name else ""
        own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
        try:
            return functional_call(part, own, arguments, options)
        except ValueError as error:  # batch normalisation of a single sample, for example
            raise DataError(f"the network cannot train on such a batch: {error}") from error

    return call


def scalar(value: Any) -> Tensor:
    """What an objective returned; refuse anything but one number that depends on what moves."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise CoterieError(f"an objective must return one number as a tensor, got {got}")
    if not value.requires_grad:
        raise CoterieError("an objective must depend on the part that moves, got a constant")
    return value.reshape(())
