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

from coterie.core.cohort import Rows, nan_to_inf
from coterie.engine.copies.error_bounds import Leads
from coterie.engine.kernels.batched import WEIGHT_BYTES, Batched, of_chosen
from coterie.engine.kernels.sample_space import even
from coterie.tensors.devices import cache_bytes
from coterie.tensors.lazy import Lazy, SelectedRows, as_selected_rows

# What the last choice may occupy that is kept in case it is asked for again.
LAST_BYTES = 64 * 2**20


class Seen(SelectedRows):
    """Models that copy `j` chose on some samples; the first layers' outputs there of all copies."""

    def __init__(self, models: Tensor, index: Tensor, rows: Rows, outputs: Tensor, j: int) -> None:
        super().__init__(models, index, outputs[:, j])
        self.rows, self.outputs, self.j = rows, outputs, j


class Strided:
    """The rows of one copy among those of all, which lie between each other [m, d].

    They are added up where they lie, in their own precision.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        m, d = self.rows.shape
        return m, d

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def dense(self) -> Tensor:
        return self.rows.clone()

    def add_to(self, sums: Tensor, member: Tensor) -> None:
        sums += member.to(self.dtype) @ self.rows


class Room:
    """Memory that is used again, as much as the most that was asked for.

    Memory that is new to the process costs almost as much time as the product that goes there.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0)
        self.users: list[ref[Strided]] = []  # who may still look at it

    @property
    def free(self) -> bool:
        return all(user() is None for user in self.users)

    def of(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of some shape that holds anything."""
        needed = math.prod(shape)
        same = self.held.dtype == like.dtype and self.held.device == like.device
        if not same or self.held.numel() < needed:
            self.held = like.new_empty(needed)
        return self.held[:needed].view(*shape)


class Choice(NamedTuple):
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

    def __init__(self, kernel: Batched, population: int = 0) -> None:
        self.kernel = kernel
        self.leads = Leads(population) if one_output(kernel) else None
        self.own, self.found = Room(), Room()  # for models of clients, and for gradients
        self.last: Choice | None = None

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
        elif ids is None or self.leads is None or not self.leads.pay(stacked, rows):
            index, outputs = self._compared(stacked, rows)
        else:
            index, outputs = self._chosen_again(stacked, rows, self.leads, ids)
        if outputs.nbytes <= LAST_BYTES:
            self.last = Choice(stacked, rows, index, outputs)
        for j, (own, best) in enumerate(zip(models, index.unbind(1), strict=True)):
            yield best, Lazy(Seen(own, best, rows, outputs, j))

    def _compared(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """The best [m, J] of each lot of models [J, k, d], and its first outputs [m, J, h, n]."""
        copies, k, _ = models.shape
        index, activations = [], []
        for _, z, losses in self.kernel._under(models.flatten(0, 1), rows):
            best = nan_to_inf(losses).view(-1, copies, k).argmin(2)  # [b, J]
            place = best + k * torch.arange(copies, device=best.device)
            index.append(best)
            activations.append(of_chosen(z, place))
        return torch.cat(index), torch.cat(activations)

    def _chosen_again(
        self, models: Tensor, rows: Rows, leads: Leads, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same for networks of one layer, where some choices are known before.

        The models of a lot are compared unless all clients of a block are sure to choose as they
        did. What the chosen ones make of the samples is found in one way for both, so that a run
        which was interrupted, and knows nothing, goes on to the last bit as it would have.
        """
        copies, k, _ = models.shape
        leads.look(models, ids, rows, self.kernel.has_bias)
        sure, index, own = leads.sure(ids), leads.best[ids], []
        outputs = models.new_empty(*rows.y.shape, copies)
        for here, some in self._blocks(models, rows):
            unsure = (~sure[here].all(0)).nonzero()[:, 0]
            if len(unsure):
                losses = nan_to_inf(self.kernel.losses(models[unsure].flatten(0, 1), some))
                losses = losses.view(len(some.y), -1, k)
                index[here, unsure] = losses.argmin(2)
                leads.compared(ids[here], unsure, losses)
            place = index[here] + k * torch.arange(copies, device=index.device)
            own.append(self._under_own(models.flatten(0, 1), place, some, outputs[here]))
        leads.chose(ids, index, torch.cat(own))
        return index, outputs.mT[:, :, None]

    def scores(self, models: list[Tensor], rows: Rows) -> Sequence[Tensor]:
        """What `Kernel.score` gives for each of J lots of models [m, d].

        Where they are linear and picked out of shared ones, the samples are gone through once.
        """
        picks = [pick for each in models if (pick := as_selected_rows(each)) is not None]
        alike = len({len(pick.models) for pick in picks}) == 1
        if not one_output(self.kernel) or len(picks) < len(models) or not alike:
            return [self.kernel.score(each, rows) for each in models]
        shared = torch.stack([pick.models for pick in picks])  # [J, k, d]
        copies, k, _ = shared.shape
        index = torch.stack([pick.index for pick in picks], 1)  # [m, J]
        last = self.last
        if last is not None and last.is_of(shared, rows) and torch.equal(last.best, index):
            outputs = last.outputs[:, :, 0].mT
        else:
            outputs = shared.new_empty(*rows.y.shape, copies)
            place = index + k * torch.arange(copies, device=shared.device)
            for here, some in self._blocks(shared, rows):
                self._under_own(shared.flatten(0, 1), place[here], some, outputs[here])
        score, inside = self.kernel.task.score, rows.mask
        return [score(outputs[:, :, j, None], rows.y, inside) for j in range(copies)]

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, Rows]]:
        """Clients that have one of each lot of models [J, k, d], as many as the cache holds."""
        copies, _, d = models.shape
        most = cache_bytes(models.device, WEIGHT_BYTES) // (copies * d * models.element_size())
        return rows.client_blocks(even(len(rows.y), most))

    def _under_own(self, models: Tensor, index: Tensor, rows: Rows, out: Tensor) -> Tensor:
        """Mean losses [m, J] of networks of one layer, each client having J of its own.

        Those of client i are the ones of the models [p, d] whose numbers are `index[i]`. What they
        make of the samples is put into `out` [m, n, J].
        """
        first, bias, _ = self.kernel._layers(models)
        own = self.own.of((index.numel(), first.shape[2]), models)
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
        the models stand side by side as if they were clients. Of models that have just been chosen
        on these samples the first product is known.
        """
        kernel, m, copies = self.kernel, len(rows.y), len(models)
        x = rows.x.flatten(2)
        own: list[list[Tensor]]  # [J][layer], each [m, ...]
        picks = [as_selected_rows(each) for each in models]
        seen = [each for each in picks if isinstance(each, Seen) and each.rows.x is rows.x]
        if len(seen) == copies:
            z = together(seen).flatten(1, 2)  # [m, J h, n]
            own = [[w[pick.index] for w in kernel._split(pick.models)[1:]] for pick in seen]
        else:
            weights = kernel._split(torch.stack(models, 1))
            z = torch.bmm(x, weights[0].flatten(1, 2).mT).mT
            if kernel.has_bias:
                z = z + weights[1].flatten(1)[:, :, None]
            own = [[w[:, j] for w in weights[1:]] for j in range(copies)]
        above: list[Tensor] = []
        if one_output(kernel):
            # Models with one squared error each are as one with J of them.
            slopes = kernel._slope(rows.y, rows.weights(z.dtype))(z)
        else:
            upper = [torch.stack(w, 1).flatten(0, 1) for w in zip(*own, strict=True)]
            y = rows.y.repeat_interleave(copies, 0)
            weight = rows.weights(z.dtype).repeat_interleave(copies, 0)
            slopes, above = kernel.stack.gradients(
                z.reshape(m * copies, -1, x.shape[1]),
                upper[kernel.has_bias :],
                kernel._slope(y, weight),
            )
            slopes = slopes.view(m, -1, x.shape[1])
        shape = (m, slopes.shape[1], x.shape[2])
        again = self.found.free  # nobody has the gradients that were found before
        into = self.found.of(shape, x) if again else x.new_empty(shape)
        found = [torch.bmm(slopes, x, out=into).view(m, copies, -1)]
        if kernel.has_bias:
            found.append(slopes.sum(2).view(m, copies, -1))
        found += [piece.reshape(m, copies, -1) for piece in above]
        whole = found[0] if len(found) == 1 else torch.cat(found, 2)
        answers = [Strided(each) for each in whole.unbind(1)]
        if again:
            self.found.users = [ref(answer) for answer in answers]
        return [Lazy(answer) for answer in answers]


def one_output(kernel: Batched) -> bool:
    """Whether models are linear and their losses squared errors."""
    return not kernel.stack.layers and kernel.task.losses_are_squared_errors


def together(seen: list[Seen]) -> Tensor:
    """The first layers' outputs [m, J, h, n] under what J copies chose on the same samples."""
    outputs = seen[0].outputs
    same = all(each.outputs is outputs for each in seen)
    if same and [each.j for each in seen] == list(range(outputs.shape[1])):
        return outputs
    return torch.stack([each.outputs[:, each.j] for each in seen], 1)
