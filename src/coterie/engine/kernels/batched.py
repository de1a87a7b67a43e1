"""The work on a chunk of clients done at once, in batched products, for stacks of linear layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows, Seeds
from coterie.core.task import Task
from coterie.engine.kernels import sample_space
from coterie.engine.kernels.blocks import blocks_by_weights
from coterie.engine.kernels.displaced import BaseModels
from coterie.engine.kernels.linear_layers import LinearLayers
from coterie.engine.kernels.race import choose_best
from coterie.engine.kernels.sample_space import FirstLayerTerms, GramCache, SampleSpaceDescent
from coterie.engine.kernels.shared_models import shared_losses
from coterie.engine.kernels.weight_descent import descend_weights
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
        outputs = (
            self.network.outputs(self.network.split(own), rows.x) for own in models.unbind(1)
        )
        each = [self.task.losses(output, rows.y) for output in outputs]
        return torch.stack([(losses * mask).sum(1) for losses in each], 1)

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

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        found = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        for here, weights, some in self._blocks(models, rows):
            weight = some.weights(models.dtype)
            gradients = self.network.gradients(weights, some.x, some.y, weight)
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

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, list[Tensor], Rows]]:
        """Clients with models [m, d] of their own, as many at a time as the cache holds.

        Gives which they are, their weights layer by layer, and their rows.
        """
        for here, some in blocks_by_weights(rows, models.shape[1], models):
            yield here, self.network.split(slice_rows(models, here)), some
