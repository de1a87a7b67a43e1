"""Shared work: the choices and gradients of several copies of an algorithm, for the same clients.

The losses of J times k models are one product, the gradients of J models for each client another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor

from coterie.core.rows import Rows, nan_to_inf
from coterie.engine.copies.error_bounds import ErrorBounds
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.blocks import blocks_by_weights
from coterie.engine.kernels.shared_models import outputs_of_chosen, shared_losses
from coterie.tensors.lazy import Lazy, SelectedRows, as_selected_rows, subtract_origin

# What the last choice may occupy that is kept in case it is asked for again.
LAST_BYTES = 64 * 2**20


class ChosenModels(SelectedRows):
    """Models that copy `j` chose on some samples; the first layers' outputs there of all copies."""

    def __init__(self, models: Tensor, index: Tensor, rows: Rows, outputs: Tensor, j: int) -> None:
        super().__init__(models, index, outputs[:, j])
        self.rows, self.outputs, self.j = rows, outputs, j


class InterleavedRows:
    """The rows of one copy [m, d], which lie between those of the others.

    They are added up where they lie, in their own precision.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.shape = len(rows), rows.shape[1]
        self.dtype, self.device = rows.dtype, rows.device

    def dense(self) -> Tensor:
        return self.rows.clone()

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        sums += member.to(self.dtype) @ self.rows
        if origin is not None:
            subtract_origin(sums, member, origin)


class ReusedBuffer:
    """Memory that is used again, as much as the most that was asked for.

    Memory that is new to the process costs almost as much time as the product that goes there.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0)
        self.users: list[ref[InterleavedRows]] = []  # who may still look at it

    @property
    def is_free(self) -> bool:
        return all(user() is None for user in self.users)

    def of(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of some shape that holds anything."""
        needed = math.prod(shape)
        same = self.held.dtype == like.dtype and self.held.device == like.device
        if not same or self.held.numel() < needed:
            self.held = like.new_empty(needed)
        return self.held[:needed].view(*shape)


class LastChoice(NamedTuple):
    """What was last chosen. A state that is judged is asked about again in the round after it."""

    models: Tensor  # [J, k, d]
    rows: Rows
    best: Tensor  # [m, J]
    outputs: Tensor  # [m, J, h, n]

    def is_of(self, models: Tensor, rows: Rows) -> bool:
        same = self.rows.x is rows.x and self.rows.y is rows.y
        return same and self.rows.size.equal(rows.size) and torch.equal(self.models, models)


class SharedWork:
    """The shared work of one kernel, and what is kept of it from one round to the next."""

    def __init__(self, kernel: BatchedKernel, population: int = 0) -> None:
        self.kernel = kernel
        self.network = kernel.network
        # Whether models are linear and their losses squared errors.
        self.is_linear_regression = (
            not self.network.upper_layers and kernel.task.losses_are_squared_errors
        )
        self.bounds = ErrorBounds(population) if self.is_linear_regression else None
        self.own_models, self.found_gradients = ReusedBuffer(), ReusedBuffer()
        self.last: LastChoice | None = None

    def choices(
        self, models: list[Tensor], rows: Rows, ids: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What `Kernel.choose` gives for each of J lots of models [k, d].

        If the rows are all that clients `ids` have, choices that cannot have changed since the last
        call may be known.
        """
        stacked = torch.stack(models)
        if self.last is not None and self.last.is_of(stacked, rows):
            _, _, index, outputs = self.last
        elif ids is None or self.bounds is None or not self.bounds.are_cheap(stacked, rows):
            index, outputs = self._compare(stacked, rows)
        else:
            index, outputs = self._compare_unsure(stacked, rows, self.bounds, ids)
        if outputs.nbytes <= LAST_BYTES:
            self.last = LastChoice(stacked, rows, index, outputs)
        for j, (own, best) in enumerate(zip(models, index.unbind(1), strict=True)):
            yield best, Lazy(ChosenModels(own, best, rows, outputs, j))

    def _compare(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """The best [m, J] of each lot of models [J, k, d], and its first outputs [m, J, h, n]."""
        copies, k, _ = models.shape
        index, activations = [], []
        for _, z, losses in shared_losses(self.network, models.flatten(0, 1), rows):
            best = nan_to_inf(losses).view(-1, copies, k).argmin(2)  # [b, J]
            place = best + k * torch.arange(copies, device=best.device)
            index.append(best)
            activations.append(outputs_of_chosen(z, place))
        return torch.cat(index), torch.cat(activations)

    def _compare_unsure(
        self, models: Tensor, rows: Rows, bounds: ErrorBounds, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same for networks of one layer, where some choices are known before.

        The models of a lot are compared unless all clients of a block are sure to choose as they
        did. What the chosen ones make of the samples is found in one way for both, so that a run
        which was interrupted, and knows nothing, goes on to the last bit as it would have.
        """
        copies, k, _ = models.shape
        bounds.update(models, ids, rows, self.network.has_bias)
        sure, index, own = bounds.unchanged(ids), bounds.best[ids], []
        outputs = models.new_empty(*rows.y.shape, copies)
        for here, some in self._blocks(models, rows):
            unsure = (~sure[here].all(0)).nonzero()[:, 0]
            if len(unsure):
                losses = nan_to_inf(self.kernel.losses(models[unsure].flatten(0, 1), some))
                losses = losses.view(len(some.y), -1, k)
                index[here, unsure] = losses.argmin(2)
                bounds.keep_losses(ids[here], unsure, losses)
            place = index[here] + k * torch.arange(copies, device=index.device)
            own.append(self._own_losses(models.flatten(0, 1), place, some, outputs[here]))
        bounds.keep_choice(ids, index, torch.cat(own))
        return index, outputs.mT[:, :, None]

    def scores(self, models: list[Tensor], rows: Rows) -> Sequence[Tensor]:
        """What `Kernel.score` gives for each of J lots of models [m, d].

        Where they are linear and selected from shared ones, the samples are gone through once.
        """
        selected = [one for each in models if (one := as_selected_rows(each)) is not None]
        alike = len({len(one.models) for one in selected}) == 1
        if not self.is_linear_regression or len(selected) < len(models) or not alike:
            return [self.kernel.score(each, rows) for each in models]
        shared = torch.stack([one.models for one in selected])  # [J, k, d]
        copies, k, _ = shared.shape
        index = torch.stack([one.index for one in selected], 1)  # [m, J]
        last = self.last
        if last is not None and last.is_of(shared, rows) and torch.equal(last.best, index):
            outputs = last.outputs[:, :, 0].mT
        else:
            outputs = shared.new_empty(*rows.y.shape, copies)
            place = index + k * torch.arange(copies, device=shared.device)
            for here, some in self._blocks(shared, rows):
                self._own_losses(shared.flatten(0, 1), place[here], some, outputs[here])
        score, inside = self.kernel.task.score, rows.mask
        return [score(outputs[:, :, j, None], rows.y, inside) for j in range(copies)]

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, Rows]]:
        """Clients that have one of each lot of models [J, k, d], as many as the cache holds."""
        copies, _, d = models.shape
        return blocks_by_weights(rows, copies * d, models)

    def _own_losses(self, models: Tensor, index: Tensor, rows: Rows, out: Tensor) -> Tensor:
        """Mean losses [m, J] of networks of one layer, each client having J of its own.

        Those of client i are the ones of the models [p, d] whose numbers are `index[i]`. What they
        make of the samples is put into `out` [m, n, J].
        """
        first, bias, _ = self.network.split_first(models)
        own = self.own_models.of((index.numel(), first.shape[2]), models)
        torch.index_select(first[:, 0], 0, index.flatten(), out=own)
        # The narrow factor last: several times faster than the other way round.
        torch.bmm(rows.x.flatten(2), own.view(*index.shape, -1).mT, out=out)
        if bias is not None:
            out += bias[index].mT
        losses = self.kernel.task.losses(out[..., None], rows.y[:, :, None])
        return nan_to_inf(torch.bmm(rows.weights(out.dtype)[:, None], losses)[:, 0])

    def gradients(self, models: list[Tensor], rows: Rows) -> Sequence[Tensor]:
        """What `Kernel.gradient` gives for each of J lots of models [m, d].

        The samples are multiplied once with the first layers of all J models of a client; above it
        the models stand side by side as if they were clients.
        """
        x, m, copies = rows.x.flatten(2), len(rows.y), len(models)
        z, upper = self._first_outputs(models, rows)
        slopes, above = self._output_gradients(z, upper, rows, copies)
        shape = (m, slopes.shape[1], x.shape[2])
        again = self.found_gradients.is_free  # nobody has the gradients that were found before
        into = self.found_gradients.of(shape, x) if again else x.new_empty(shape)
        found = [torch.bmm(slopes, x, out=into).view(m, copies, -1)]
        if self.network.has_bias:
            found.append(slopes.sum(2).view(m, copies, -1))
        found += [piece.reshape(m, copies, -1) for piece in above]
        whole = found[0] if len(found) == 1 else torch.cat(found, 2)
        answers = [InterleavedRows(each) for each in whole.unbind(1)]
        if again:
            self.found_gradients.users = [ref(answer) for answer in answers]
        return [Lazy(answer) for answer in answers]

    def _first_outputs(self, models: list[Tensor], rows: Rows) -> tuple[Tensor, list[list[Tensor]]]:
        """The first layers' outputs [m, J h, n], and the weights above them, [J][layer].

        Of models that have just been chosen on these samples the outputs are known.
        """
        network, copies, skipped = self.network, len(models), 1 + self.network.has_bias
        selected = [as_selected_rows(each) for each in models]
        chosen = [
            each for each in selected if isinstance(each, ChosenModels) and each.rows.x is rows.x
        ]
        if len(chosen) == copies:
            z = stack_outputs(chosen).flatten(1, 2)
            split = [network.split(each.models)[skipped:] for each in chosen]
            return z, [
                [weight[each.index] for weight in weights]
                for each, weights in zip(chosen, split, strict=True)
            ]
        weights = network.split(torch.stack(models, 1))
        z = torch.bmm(rows.x.flatten(2), weights[0].flatten(1, 2).mT).mT
        if network.has_bias:
            z = z + weights[1].flatten(1)[:, :, None]
        return z, [[weight[:, j] for weight in weights[skipped:]] for j in range(copies)]

    def _output_gradients(
        self, z: Tensor, upper: list[list[Tensor]], rows: Rows, copies: int
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by first outputs [m, J h, n], and by the weights above them."""
        weight = rows.weights(z.dtype)
        if self.is_linear_regression:
            # Models with one squared error each are as one with J of them.
            return self.network.loss_gradient(z, rows.y, weight), []
        m, n = rows.y.shape
        slopes, above = self.network.upper_gradients(
            z.reshape(m * copies, -1, n),
            [torch.stack(piece, 1).flatten(0, 1) for piece in zip(*upper, strict=True)],
            rows.y.repeat_interleave(copies, 0),
            weight.repeat_interleave(copies, 0),
        )
        return slopes.view(m, -1, n), above


def stack_outputs(chosen: list[ChosenModels]) -> Tensor:
    """The first layers' outputs [m, J, h, n] under what J copies chose on the same samples."""
    outputs = chosen[0].outputs
    same = all(each.outputs is outputs for each in chosen)
    if same and [each.j for each in chosen] == list(range(outputs.shape[1])):
        return outputs
    return torch.stack([each.outputs[:, each.j] for each in chosen], 1)
