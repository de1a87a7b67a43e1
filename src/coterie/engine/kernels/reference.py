"""The reference: the work on a cohort done for one client after another, for any network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from coterie.core.errors import DataError
from coterie.core.kernel import Descent, Minimisation, Seeds
from coterie.core.rows import Rows, nan_to_inf
from coterie.core.samples import as_batch
from coterie.core.task import Task
from coterie.engine.kernels.minimise import minimise_one
from coterie.engine.kernels.module_calls import (
    Tensors,
    copy_tensors,
    differentiate,
    flatten_tensors,
    keep_outside,
    module_on,
    training,
)
from coterie.engine.kernels.objective import ObjectiveTerms
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import select_rows


class PerClientKernel:
    """One client after another, by automatic differentiation; for any network.

    Losses and scores are computed in evaluation mode, gradients in training mode. What a network
    draws (dropout) comes from the client's own seed.
    """

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        self.task = task
        self.module = module_on(device, task.module)
        # Whether convolutions are laid out so; None: not known.
        self._channels_last: bool | None = None if device.type == "cpu" else False
        self._generators = [device] if device.type == "cuda" else []  # besides that of the CPU

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        own = models.expand(len(rows.size), *models.shape[-2:])
        return torch.stack(
            [
                torch.stack([self._loss(model, x, y) for model in client])
                for client, x, y in self._clients(own, rows)
            ]
        )

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        own = models.expand(len(rows.size), *models.shape[-2:])
        found = models.new_zeros(*rows.y.shape[:2], own.shape[1])
        for losses, (client, x, y) in zip(found, self._clients(own, rows), strict=True):
            for j, model in enumerate(client):
                losses[: len(y), j] = self.task.losses(self._output(model, x), y)
        return found

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        index = torch.zeros_like(rows.size)
        if len(models) > 1:
            index = nan_to_inf(self.losses(models, rows)).argmin(1)
        return index, select_rows(models, index)

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return torch.cat(
            [
                self.task.score(self._output(model, x)[None], y[None], inside[None])
                for model, x, y in self._clients(models, rows)
                for inside in [torch.ones(len(y), device=y.device)]
            ]
        )

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        found = []
        for own, x, y in self._clients(shares, rows):
            outputs = torch.stack([self._output(model, x.clone()) for model in models])
            mixed = self.task.mix(outputs[:, None], own[None])
            inside = torch.ones(1, len(y), device=y.device)
            found.append(self.task.score(mixed, y[None], inside))
        return torch.cat(found)

    def gradient(
        self, models: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        gradients, layout = torch.zeros_like(models), self.task.layout
        with training(self.module), torch.random.fork_rng(self._generators):
            for i, (model, x, y) in enumerate(self._clients(models, rows)):
                torch.manual_seed(seeds[i])
                trained, carried = copy_tensors(layout, self._tensors(model, x))
                weight = None if weights is None else weights[i, : len(y)]
                found = self._gradients(trained, carried, x, y, weight)
                gradients[i, : layout.trained_size] = flatten_tensors(found)
                if carried:
                    after = flatten_tensors(list(carried.values()))
                    gradients[i, layout.trained_size :] = model[layout.trained_size :] - after
        return gradients

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        ends = torch.empty_like(start)
        with training(self.module), torch.random.fork_rng(self._generators):
            for i, (model, x, y) in enumerate(self._clients(start, rows)):
                torch.manual_seed(descent.seeds[i])
                ends[i] = self._descend_one(model, x, y, i, descent)
        return ends

    def _descend_one(self, model: Tensor, x: Any, y: Any, i: int, descent: Descent) -> Tensor:
        layout = self.task.layout
        trained, carried = copy_tensors(layout, self._tensors(model, x))
        anchor = None if descent.anchor is None else descent.anchor[i]
        rule, terms = descent.rule, ObjectiveTerms(layout, descent._replace(anchor=anchor), lead=0)
        optimizer = rule.begin_optimizer()
        weight = None if descent.weights is None else descent.weights[i, : len(y)]
        for step in range(descent.steps[i]):
            batch: slice | Tensor = slice(None)
            if descent.batches is not None:
                row = descent.batches[i][step]
                batch = row[row >= 0]
            of_samples = None if weight is None else weight[batch]
            found = self._gradients(trained, carried, x[batch], y[batch], of_samples)
            with torch.no_grad():
                found = terms.gradients(layout.trained, found, trained.values())
                pairs = zip(trained.values(), optimizer.directions(found), strict=True)
                for now, direction in pairs:
                    now -= rule.lr * direction
        carried = keep_outside(layout, model, carried, terms.moves)
        return flatten_tensors([*trained.values(), *carried.values()]).to(model.dtype)

    def minimise(
        self, start: Tensor, rows: Rows, minimisation: Minimisation
    ) -> tuple[Tensor, Tensor]:
        found = []
        with training(self.module), torch.random.fork_rng(self._generators):
            for i, (model, x, y) in enumerate(self._clients(start, rows)):
                torch.manual_seed(minimisation.seeds[i])
                found.append(minimise_one(self.task, self.module, model, x, y, i, minimisation))
        ends, states = zip(*found, strict=True)
        return torch.stack(ends), torch.stack(states)

    def _clients(self, models: Tensor, rows: Rows) -> Iterator[tuple[Tensor, Any, Any]]:
        """(model or models, features, targets) of one client after another, without padding."""
        for model, x, y, size in zip(models, rows.x, rows.y, rows.size.tolist(), strict=True):
            # A copy, for a network may work in place.
            yield model, as_batch(x[:size]).clone(), as_batch(y[:size])

    def _tensors(self, model: Tensor, x: Any) -> Tensors:
        """A model's tensors by name, those of convolutions with channels last if that works.

        It is faster on a CPU, but a network whose forward pass views a convolution's output in
        another shape cannot be had so.
        """
        plain = self.task.layout.unflatten(model)
        if self._channels_last is False:
            return plain
        last = {
            n: t.to(memory_format=torch.channels_last) for n, t in plain.items() if t.dim() == 4
        }
        if self._channels_last is None:
            self._channels_last = self._runs({**plain, **last}, x[:1].clone())
        return {**plain, **last} if self._channels_last else plain

    def _runs(self, tensors: Tensors, x: Any) -> bool:
        """Whether the network can be called with these tensors."""
        trains = self.module.training
        try:
            with torch.no_grad():
                functional_call(self.module.eval(), tensors, self.task.arguments(x))
        except (RuntimeError, ValueError):  # also of a normalisation that needs several samples
            return False
        finally:
            self.module.train(trains)
        return True

    def _gradients(
        self, trained: Tensors, carried: Tensors, x: Any, y: Any, weight: Tensor | None
    ) -> list[Tensor]:
        """The derivative of a client's mean loss, of samples with weights [n], by its tensors."""
        try:
            arguments = self.task.arguments(x)
            output = functional_call(self.module, {**trained, **carried}, arguments)
        except ValueError as error:  # batch normalisation of a single sample, for example
            raise DataError(f"the network cannot train on a batch of {len(x)}: {error}") from error
        losses = self.task.losses(output, y)
        return differentiate((losses if weight is None else losses * weight).mean(), trained)

    def _output(self, model: Tensor, x: Any) -> Tensor:
        tensors, arguments = self._tensors(model, x), self.task.arguments(x)
        output: Tensor = functional_call(self.module.eval(), tensors, arguments)
        return output

    def _loss(self, model: Tensor, x: Any, y: Any) -> Tensor:
        return self.task.losses(self._output(model, x), y).mean()
