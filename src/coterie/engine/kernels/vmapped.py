"""The work on a chunk of clients done at once, for any network that can be done so.

`torch.func.vmap` gives every client weights of its own: the convolutions of many clients become one
convolution in groups. That suits a GPU; a CPU is faster with one client after another.

Clients are padded to the longest of them, and padding has no weight. This is exact only for a
network that looks at each sample by itself, does not draw and does not change its buffers. Whether
a network is such a one is tried, once, against the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from coterie.core.errors import DataError
from coterie.core.kernel import Descent, Minimisation, Seeds, StepRule
from coterie.core.layout import keeps_statistics
from coterie.core.rows import Rows, nan_to_inf
from coterie.core.task import Task
from coterie.engine.kernels.blocks import LAYERED_BYTES, blocks_by_weights
from coterie.engine.kernels.module_calls import Tensors, copy_tensors, differentiate, training
from coterie.engine.kernels.objective import (
    MiniBatches,
    ObjectiveTerms,
    full_batch_weights,
    zero_if_finished,
)
from coterie.engine.kernels.reference import PerClientKernel
from coterie.tensors.devices import ACCELERATOR_BYTES, CPU
from coterie.tensors.lazy import as_selected_rows, dense, select_rows, slice_rows
from coterie.tensors.optimizers import Optimizer
from coterie.tensors.products import SummedProducts, form

# What the samples that are worked on at a time may occupy: what layers make of them takes many
# times as much.
SAMPLE_BYTES = ACCELERATOR_BYTES // 8
TRIAL_SAMPLES = 3  # by which a network is tried


class VmappedKernel:
    """All clients of a chunk at once by `vmap`; one by one where that would not be the same."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        self.task = task
        self.one_by_one = PerClientKernel(task, device)
        self.module = self.one_by_one.module
        self._exact: bool | None = None  # whether this network can be done so; None: not tried

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.losses(models, rows)
        return torch.cat([self._losses(*block) for block in blocks_of_models(models, rows)])

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.sample_losses(models, rows)
        blocks = blocks_of_models(models, rows)
        return torch.cat([torch.stack(list(self._sample_losses(*each)), 2) for each in blocks])

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        index = torch.zeros_like(rows.size)
        if len(models) > 1:
            index = nan_to_inf(self.losses(models, rows)).argmin(1)
        return index, select_rows(models, index)

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.score(models, rows)
        return torch.cat(
            [
                self.task.score(self._outputs(models, here, some.x), some.y, some.mask)
                for here, some in blocks_by_samples(rows)
            ]
        )

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.score_mixture(models, rows, shares)
        self.module.eval()
        found = []
        for here, some in blocks_by_samples(rows):
            outputs = torch.stack([self._under(model, some.x) for model in models])
            mixed = self.task.mix(outputs, shares[here])
            found.append(self.task.score(mixed, some.y, some.mask))
        return torch.cat(found)

    def gradient(
        self, models: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.gradient(models, rows, seeds, weights)
        found, layout = torch.zeros_like(dense(models)), self.task.layout
        with training(self.module):
            for here, some in blocks_by_samples(rows):
                of_samples = None if weights is None else weights[here]
                weight = full_batch_weights(some, models.dtype, of_samples)
                trained, carried = copy_tensors(layout, layout.unflatten(slice_rows(models, here)))
                inputs, by_task = self._gradient_inputs({**trained, **carried}, some.x)
                parts = self._gradients(trained, carried, inputs, some.y, weight, by_task)
                found[here, : layout.trained_size] = flatten_by_client(map(form, parts))
        return found

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        if not self.is_exact_for(rows):
            return self.one_by_one.descend(start, rows, descent)
        with training(self.module):
            return torch.cat(
                [
                    self._descend(slice_rows(start, here), some, descent.slice_clients(here))
                    for here, some in blocks_of_descents(start, rows)
                ]
            )

    def minimise(
        self, start: Tensor, rows: Rows, minimisation: Minimisation
    ) -> tuple[Tensor, Tensor]:
        return self.one_by_one.minimise(start, rows, minimisation)

    def is_exact_for(self, rows: Rows) -> bool:
        """Whether the network can be done for all clients at once; tried on the first samples."""
        if self._exact is None and rows.y.numel():
            tensors = isinstance(rows.x, Tensor) and isinstance(rows.y, Tensor)
            layout = self.task.layout
            one_type = {*layout.dtypes[: len(layout.trained)]} == {layout.dtype}
            can = tensors and one_type and not keeps_statistics(self.module)
            self._exact = can and self._agrees(rows)
        return bool(self._exact)

    def _agrees(self, rows: Rows) -> bool:
        """Whether two clients, with padding, have the losses and the step of the reference."""
        client = int(rows.size.argmax())
        x, y = rows.x[client, :TRIAL_SAMPLES], rows.y[client, :TRIAL_SAMPLES]
        x, y = (torch.cat([part, torch.zeros_like(part[:1])]) for part in (x, y))
        size = torch.tensor([min(TRIAL_SAMPLES, int(rows.size[client])), 1], device=y.device)
        pair = Rows(torch.stack([x, x]), torch.stack([y, y]), size)
        model = self.task.layout.flatten(self.task.module).to(y.device)
        models = torch.stack([model, model])
        models[1, : self.task.layout.trained_size] *= 0.9
        step = Descent(StepRule(1.0), [1, 1], None, [0, 0])
        try:
            with torch.no_grad():
                losses = self._losses(models[:, None], pair)
                expected = self.one_by_one.losses(models[:, None], pair)
            with training(self.module), torch.enable_grad():
                ends = self._descend(models, pair, step)
                reference = self.one_by_one.descend(models, pair, step)
            carried = slice(self.task.layout.trained_size, None)
            still = torch.equal(ends[:, carried], models[:, carried])
            return still and nearly_equal(losses, expected) and nearly_equal(ends, reference)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, DataError):  # what vmap refuses: a draw, for example
            return False

    def _losses(self, models: Tensor, rows: Rows) -> Tensor:
        """Mean losses [m, k] of models [k, d] shared by all clients, or [m, k, d] of their own."""
        weight = rows.weights(models.dtype)
        each = self._sample_losses(models, rows)
        return torch.stack([(losses * weight).sum(1) for losses in each], 1)

    def _sample_losses(self, models: Tensor, rows: Rows) -> Iterator[Tensor]:
        """The losses [m, n] of samples under each of such models."""
        self.module.eval()
        if models.dim() == 2:
            outputs = (self._under(model, rows.x) for model in models)
        else:
            unflatten = self.task.layout.unflatten
            outputs = (self._forward(unflatten(own), rows.x) for own in models.unbind(1))
        return (self.task.losses(output, rows.y) for output in outputs)

    def _outputs(self, models: Tensor, here: slice, x: Tensor) -> Tensor:
        """What the network makes of samples [b, n, ...] of some clients, [b, n, c]."""
        self.module.eval()
        pick = as_selected_rows(models)
        if pick is None:
            return self._forward(self.task.layout.unflatten(dense(models)[here]), x)
        index, found = pick.index[here], None
        for j in index.unique().tolist():
            clients = torch.nonzero(index == j).flatten()
            output = self._under(pick.models[j], x[clients])
            if found is None:
                found = output.new_empty(len(x), *output.shape[1:])
            found[clients] = output
        assert found is not None
        return found

    def _under(self, model: Tensor, x: Tensor) -> Tensor:
        """What the network makes of samples [b, n, ...] with one model [d] for all: [b, n, c].

        The samples of all clients are one long batch; a copy, for a network may work in place.
        """
        tensors = self.task.layout.unflatten(model)
        output: Tensor = functional_call(self.module, tensors, (x.flatten(0, 1).clone(),))
        return output.view(*x.shape[:2], *output.shape[1:])

    def _forward(self, tensors: Tensors, x: Tensor) -> Tensor:
        """The same with each client's own tensors [b, ...]."""
        call = vmap(partial(functional_call, self.module), randomness="error")
        outputs: Tensor = call(tensors, x.clone())
        return outputs

    def _gradient_inputs(self, tensors: Tensors, x: Tensor) -> tuple[Tensor, bool]:
        """What gradients take of samples, and whether the task writes these gradients out."""
        inputs = self.task.gradient_inputs(tensors, x)
        return (x, False) if inputs is None else (inputs, True)

    def _gradients(
        self,
        trained: Tensors,
        carried: Tensors,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        by_task: bool,
    ) -> Sequence[Tensor | SummedProducts]:
        """The derivative of each client's weighted losses by its own tensors.

        That of their sum: no client's loss depends on another's tensors.
        """
        if by_task:
            return self.task.model_gradients({**trained, **carried}, x, y, weight)
        with torch.enable_grad():
            output = self._forward({**trained, **carried}, x)
            loss = (self.task.losses(output, y) * weight).sum()
        return differentiate(loss, trained)

    def _descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        layout = self.task.layout
        ends: Tensor = dense(start).to(layout.dtype, copy=True)
        rule, terms = descent.rule, ObjectiveTerms(layout, descent)
        optimizer, equal = rule.begin_optimizer(), len(set(descent.steps)) == 1
        plain = terms.is_empty and equal
        # Tensors of their own, on which steps are made in place; or views of `ends`, so that a step
        # is made on all of them at once.
        own = torch.clone if plain else torch.Tensor.detach
        tensors = {name: own(tensor) for name, tensor in layout.unflatten(ends).items()}
        trained = {name: tensors.pop(name).requires_grad_() for name in layout.trained}
        inputs, by_task = self._gradient_inputs({**trained, **tensors}, rows.x)
        rows = rows._replace(x=inputs)
        batches = MiniBatches.of(descent, layout.dtype, rows.y.device)
        x, y, weight = rows.x, rows.y, full_batch_weights(rows, layout.dtype, descent.weights)
        for step in range(max(descent.steps)):
            if batches is not None:
                weight = batches.weight[:, step]
                x, y, _ = rows.take(batches.place[:, step])
            found = self._gradients(trained, tensors, x, y, weight, by_task)
            with torch.no_grad():
                if plain:
                    step_in_place(optimizer, [*trained.values()], found, rule.lr)
                    continue
                whole = terms.gradients(layout.trained, [*map(form, found)], trained.values())
                (direction,) = optimizer.directions([flatten_by_client(whole)])
                if not equal:
                    direction = zero_if_finished(direction, descent.steps, step)
                ends[:, : layout.trained_size].sub_(direction, alpha=rule.lr)
        if plain:
            ends[:, : layout.trained_size] = flatten_by_client(trained.values())
        return ends.to(start.dtype)


def step_in_place(
    optimizer: Optimizer,
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | SummedProducts],
    lr: float,
) -> None:
    """A step in place; gradients that are products are not formed for a plain one."""
    if optimizer.kind != "sgd":
        optimizer.step(tensors, [*map(form, gradients)], lr)
        return
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if isinstance(gradient, SummedProducts):
            gradient.step(tensor, lr)
        else:
            tensor.sub_(gradient, alpha=lr)


def blocks_by_samples(rows: Rows) -> Iterator[tuple[slice, Rows]]:
    """As many clients at a time as there is room for: which they are, and their rows."""
    bytes_of_one = max(1, rows.x[0].numel() * rows.x.element_size())
    block = max(1, SAMPLE_BYTES // bytes_of_one)
    return rows.client_blocks(block)


def blocks_of_descents(models: Tensor, rows: Rows) -> Iterator[tuple[slice, Rows]]:
    """Clients that make steps of their own from models [m, d], so few that a cache holds these."""
    for here, some in blocks_by_weights(rows, models.shape[1], models, LAYERED_BYTES):
        for inside, few in blocks_by_samples(some):
            clients = range(*here.indices(len(rows.y)))[inside]
            yield slice(clients.start, clients.stop), few


def blocks_of_models(models: Tensor, rows: Rows) -> Iterator[tuple[Tensor, Rows]]:
    """Blocks of clients: models [k, d] that all share or [b, k, d] of their own, and their rows."""
    for here, some in blocks_by_samples(rows):
        yield models if models.dim() == 2 else models[here], some


def flatten_by_client(tensors: Iterable[Tensor]) -> Tensor:
    """The tensors [b, ...] of each client one after another in one vector, [b, d]."""
    return torch.cat([tensor.detach().reshape(len(tensor), -1) for tensor in tensors], 1)


def nearly_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two results are the same to rounding, on devices that round generously."""
    share = 1e-6 if one.dtype == torch.float64 else 1e-2
    bound = share * float(other.abs().max())
    return torch.allclose(one, other, rtol=0.0, atol=bound)
