"""The work on a chunk of clients done at once, in batched products, for stacks of linear layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.core.kernel import Descent, Minimisation, Seeds
from coterie.core.rows import Rows
from coterie.core.task import Task
from coterie.engine.kernels import sample_space
from coterie.engine.kernels.blocks import blocks_by_weights
from coterie.engine.kernels.displaced import BaseModels
from coterie.engine.kernels.first_layer_terms import FirstLayerTerms
from coterie.engine.kernels.gram_cache import GramCache
from coterie.engine.kernels.linear_layers import LinearLayers
from coterie.engine.kernels.objective import (
    MiniBatches,
    ObjectiveTerms,
    full_batch_weights,
    zero_if_finished,
)
from coterie.engine.kernels.race import choose_best
from coterie.engine.kernels.reference import PerClientKernel
from coterie.engine.kernels.sample_space import SampleSpaceDescent
from coterie.engine.kernels.shared_models import shared_losses, shared_sample_losses
from coterie.tensors.lazy import Lazy, SelectedRows, select_rows, slice_rows


class BatchedKernel:
    """All clients of a chunk in batched matrix products; for stacks of linear layers."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.network = LinearLayers(task)
        self.grams = GramCache()

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        if models.dim() == 2:
            blocks = shared_losses(self.network, models, rows)
            return torch.cat([losses for _, _, losses in blocks])
        mask = rows.weights(models.dtype)
        return torch.stack([(losses * mask).sum(1) for losses in self._own(models, rows)], 1)

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        if models.dim() == 2:
            blocks = shared_sample_losses(self.network, models, rows)
            return torch.cat([losses for _, _, losses in blocks], 1).permute(1, 2, 0)
        return torch.stack(list(self._own(models, rows)), 2)

    def _own(self, models: Tensor, rows: Rows) -> Iterator[Tensor]:
        """The losses [m, n] of samples under each of the models [m, k, d] of their clients."""
        for own in models.unbind(1):
            yield self.task.losses(self.network.outputs(self.network.split(own), rows.x), rows.y)

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if len(models) == 1:
            return (only := torch.zeros_like(rows.size)), select_rows(models, only)
        outputs = models.new_empty(len(rows.y), self.network.width, rows.y.shape[1])
        index = choose_best(self.network, models, rows, outputs)
        return index, Lazy(SelectedRows(models, index, outputs))

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return torch.cat(
            [
                self.task.score(self.network.outputs(weights, some.x), some.y, some.mask)
                for _, weights, some in self._blocks(models, rows)
            ]
        )

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        found = []
        for here, some in blocks_by_weights(rows, models.shape[1], models):
            own = (model.expand(len(some.y), -1) for model in models)
            outputs = [self.network.outputs(self.network.split(each), some.x) for each in own]
            mixed = self.task.mix(torch.stack(outputs), shares[here])
            found.append(self.task.score(mixed, some.y, some.mask))
        return torch.cat(found)

    def gradient(
        self, models: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        found = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        for here, own, some in self._blocks(models, rows):
            of_samples = None if weights is None else weights[here]
            weight = full_batch_weights(some, models.dtype, of_samples)
            gradients = self.network.gradients(own, some.x, some.y, weight)
            torch.cat([gradient.flatten(1) for gradient in gradients], 1, out=found[here])
        return found

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        network, base = self.network, BaseModels(start)
        terms = FirstLayerTerms.of(descent, network.first_size)
        if terms is not None and sample_space.is_faster(
            rows, descent, terms, network.width, base.shared
        ):
            return SampleSpaceDescent(network, self.grams, base, rows, descent, terms).run()
        found = torch.empty(start.shape, dtype=start.dtype, device=start.device)
        for here, weights, some in self._blocks(start, rows):
            ends = descend_weights(network, weights, some, descent.slice_clients(here))
            torch.cat([end.flatten(1) for end in ends], 1, out=found[here])
        return found

    def minimise(
        self, start: Tensor, rows: Rows, minimisation: Minimisation
    ) -> tuple[Tensor, Tensor]:
        return PerClientKernel(self.task, start.device).minimise(start, rows, minimisation)

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, list[Tensor], Rows]]:
        """Clients with models [m, d] of their own, as many at a time as the cache holds.

        Gives which they are, their weights layer by layer, and their rows.
        """
        for here, some in blocks_by_weights(rows, models.shape[1], models):
            yield here, self.network.split(slice_rows(models, here)), some


def descend_weights(
    network: LinearLayers, start: list[Tensor], rows: Rows, descent: Descent
) -> list[Tensor]:
    """Where gradient descent on a block of clients' own weights, tensor by tensor, ends."""
    layout = network.task.layout
    equal = len(set(descent.steps)) == 1
    batches = MiniBatches.of(descent, layout.dtype, rows.y.device)
    x, y, weight = rows.x, rows.y, full_batch_weights(rows, layout.dtype, descent.weights)
    weights = [piece.clone() for piece in start]
    rule, terms = descent.rule, ObjectiveTerms(layout, descent)
    optimizer = rule.begin_optimizer()
    plain = terms.is_empty and equal and rule.optimizer == "sgd"
    for step in range(max(descent.steps)):
        if batches is not None:
            weight = batches.weight[:, step]
            x, y, _ = rows.take(batches.place[:, step])
        if plain:
            plain_step(network, weights, x, y, weight, rule.lr)
            continue
        gradients = network.gradients(weights, x, y, weight)
        gradients = terms.gradients(layout.names, gradients, weights)
        for piece, direction in zip(weights, optimizer.directions(gradients), strict=True):
            if not equal:
                direction = zero_if_finished(direction, descent.steps, step)
            piece.sub_(direction, alpha=rule.lr)
    return weights


def plain_step(
    network: LinearLayers, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, lr: float
) -> None:
    """A gradient step on the losses alone, in place; the first layer's gradient is not formed."""
    slopes, others = network.output_gradients(weights, x, y, weight)
    weights[0].baddbmm_(slopes, x.flatten(2), alpha=-lr)
    for piece, gradient in zip(weights[1:], others, strict=True):
        piece.sub_(gradient, alpha=lr)
