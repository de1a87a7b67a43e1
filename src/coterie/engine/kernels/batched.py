"""The work on a chunk of clients done at once, in batched products, for stacks of linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from coterie.core.cohort import Descent, Rows, Seeds, nan_to_inf
from coterie.core.task import Task
from coterie.engine.kernels import race, sample_space
from coterie.engine.kernels.displaced import Moved, Origin, activations
from coterie.engine.kernels.linear_layers import Slope, Stack, flat_layers
from coterie.engine.kernels.matmul import product
from coterie.engine.kernels.minibatches import Batches, standing
from coterie.engine.kernels.objective import Terms
from coterie.engine.kernels.sample_space import Above, Course, Descending, even, taken
from coterie.tensors.devices import cache_bytes, working_bytes
from coterie.tensors.lazy import Lazy, SelectedRows, select_rows, slice_rows

# What the weights of clients that a thread works on at a time may occupy: more than this falls out
# of the cache and slows down.
WEIGHT_BYTES = 4 * 2**20
# What the first layer's outputs of a block of clients under k shared models may occupy; from an
# eighth to four times as much is as fast.
SHARED_BYTES = 8 * 2**20
JUDGES = 8  # clients at most by whom a race is judged to be close


class Batched:
    """All clients of a chunk in batched matrix products; for stacks of linear layers."""

    def __init__(self, task: Task) -> None:
        self.task = task
        layers = [layer for layer in flat_layers(task.module) if not isinstance(layer, nn.Flatten)]
        self.has_bias = layers[0].bias is not None  # of the first linear layer
        self.width = task.layout.shapes[0][0]  # of its outputs
        self.first_size = sum(task.layout.sizes[: 1 + self.has_bias])  # coordinates of it
        self.stack = Stack(layers[1:])
        self.grams = sample_space.Grams()

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        if models.dim() == 2:
            return torch.cat([losses for _, _, losses in self._under(models, rows)])
        mask = rows.weights(models.dtype)
        each = [
            self.task.losses(self._outputs(self._split(own), rows.x), rows.y)
            for own in models.unbind(1)
        ]
        return torch.stack([(losses * mask).sum(1) for losses in each], 1)

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if len(models) == 1:
            return (only := torch.zeros_like(rows.size)), select_rows(models, only)
        samples = rows.y.shape[1]
        z = models.new_empty(len(rows.y), self._layers(models)[0].shape[1], samples)
        cut = race.first_lap(samples) if self.task.losses_at_least_zero else 0
        if cut and not self._is_close(models, rows, cut):
            index = self._raced(models, rows, cut, z)
        else:
            index = self._compared(models, rows, z)
        return index, Lazy(SelectedRows(models, index, z))

    def _compared(self, models: Tensor, rows: Rows, out: Tensor) -> Tensor:
        """The best model [m] of each client, all seeing all samples.

        What its first layer makes of them is put into `out` [m, h, n].
        """
        index = torch.empty_like(rows.size)
        for here, z, losses in self._under(models, rows):
            index[here] = nan_to_inf(losses).argmin(1)
            out[here] = of_chosen(z, index[here])
        return index

    def _raced(self, models: Tensor, rows: Rows, cut: int, out: Tensor) -> Tensor:
        """The same by a race, all models seeing the first `cut` samples."""
        lap, rest = rows.row_range(0, cut), rows.row_range(cut, rows.y.shape[1])
        blocks = list(self._under(models, lap, rows.size))
        index = race.finished(
            nan_to_inf(torch.cat([losses for _, _, losses in blocks])),
            out[:, :, cut:],
            lambda clients, j, last: self._finish(models, j, rest, clients, rows.size, last),
        )
        for here, z, _ in blocks:
            out[here, :, :cut] = of_chosen(z, index[here])
        return index

    def _is_close(self, models: Tensor, rows: Rows, cut: int) -> bool:
        """Whether few models would be left behind after `cut` samples, by some of the clients."""
        every = -(-len(rows.y) // JUDGES)
        some = Rows(*(part[::every] for part in rows))
        blocks = self._under(models, some.row_range(0, cut), some.size)
        losses = torch.cat([losses for _, _, losses in blocks])
        return race.is_close(losses, cut / rows.y.shape[1])

    def _finish(
        self, models: Tensor, index: Tensor, rows: Rows, clients: Tensor, count: Tensor, out: Tensor
    ) -> Tensor:
        """Mean losses [c] of model `index[i]` on the rows of client `clients[i]`.

        The mean is over `count` [m] samples. The first layer's outputs [c, h, n] are put into
        `out`.
        """
        x = rows.x.flatten(2)
        first, bias, upper = self._layers(models)
        block = max(
            1, working_bytes(models.device, SHARED_BYTES) // (out[0].numel() * out.element_size())
        )
        losses = []
        for j, i, z in zip(index.split(block), clients.split(block), out.split(block), strict=True):
            activations(first, bias, j, x, i, z)
            output = self.stack.outputs(z, [layer[j] for layer in upper]).mT
            mask = Rows(x, rows.y[i], rows.size[i]).weights(models.dtype, count[i])
            losses.append((self.task.losses(output, rows.y[i]) * mask).sum(1))
        return torch.cat(losses)

    def _under(
        self, models: Tensor, rows: Rows, count: Tensor | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The clients under shared models [k, d], a block of clients at a time.

        Gives which they are, the first layer's outputs [k, h, b, n] and the mean losses [b, k]: all
        rows of the block and all models are one long product. The mean is over `count` [m] samples
        if these are only some of them.
        """
        first, bias, upper = self._layers(models)
        k, h, n = len(models), first.shape[1], rows.y.shape[1]
        count = rows.size if count is None else count
        room_here = working_bytes(models.device, SHARED_BYTES)
        block = max(1, room_here // (k * h * n * models.element_size()))
        for here, some in rows.client_blocks(block):
            samples, y = some.x.flatten(0, 1).flatten(1), some.y.flatten(0, 1)
            z = product(first.flatten(0, 1), samples.T).view(k, h, len(samples))
            if bias is not None:
                z += bias[:, :, None]
            output = self.stack.outputs(z, upper).mT  # [k, b n, c]
            losses = self.task.losses(output, y.expand(k, *y.shape)).view(k, -1, n)
            mask = some.weights(models.dtype, count[here])
            yield here, z.view(k, h, -1, n), (losses * mask).sum(2).T

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return torch.cat(
            [
                self.task.score(self._outputs(weights, some.x), some.y, some.mask)
                for _, weights, some in self._blocks(models, rows)
            ]
        )

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        found = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        for here, weights, some in self._blocks(models, rows):
            gradients = self._gradients(weights, some.x, some.y, some.weights(models.dtype))
            torch.cat([gradient.flatten(1) for gradient in gradients], 1, out=found[here])
        return found

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        course, begin = Course.of(descent, self.first_size), Origin(start)
        if course is not None and sample_space.pays(
            rows, descent, course, self.width, begin.shared
        ):
            return self._descend_in_sample_space(begin, rows, descent, course)
        found = torch.empty(start.shape, dtype=start.dtype, device=start.device)
        for here, weights, some in self._blocks(start, rows):
            ends = self._descend(weights, some, descent.slice_clients(here))
            torch.cat([end.flatten(1) for end in ends], 1, out=found[here])
        return found

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, list[Tensor], Rows]]:
        """Clients with models [m, d] of their own, as many at a time as the cache holds.

        Gives which they are, their weights layer by layer, and their rows.
        """
        most = cache_bytes(models.device, WEIGHT_BYTES) // (models.shape[1] * models.element_size())
        for here, some in rows.client_blocks(even(len(models), most)):
            yield here, self._split(slice_rows(models, here)), some

    def _descend_in_sample_space(
        self, begin: Origin, rows: Rows, descent: Descent, course: Course
    ) -> Tensor:
        """Descent that carries first-layer outputs along in place of that layer's weights."""
        activations, ids = begin.activations, descent.ids
        batches = Batches.of(descent, self.task.layout.dtype, rows.y.device)
        if batches is not None and batches.place[0].numel() < rows.y.shape[1]:
            # Samples that no step sees are left out: the columns are the steps' own, in order.
            place = batches.place.flatten(1)
            if activations is not None:
                activations = taken(activations, place)
            rows, ids = rows.take(place), None
            place = torch.arange(place.shape[1], device=place.device)
            place = place.view(batches.place.shape[1:]).expand_as(batches.place)
            batches = batches._replace(place=place)
        x = rows.x.flatten(2)
        z = self._first_outputs(begin, x) if activations is None else activations
        anchor = None if descent.anchor is None else Origin(descent.anchor)
        step_above = self._above(descent, anchor)
        beside = None  # what the anchor of the first layer makes of the samples
        if anchor is not None and course.pull and course.learns:
            beside = z if anchor.is_that_of(begin) else self._first_outputs(anchor, x)
        upper = [layer[begin.index] for layer in self._layers(begin.models)[2]]
        moved = Descending(
            course,
            descent.steps,
            batches,
            self._slopes_of(rows, batches),
            lambda here: self._gram(x[here], None if ids is None else ids[here]),
            self.stack,
            step_above,
        ).from_outputs(z, beside, upper)
        left, came = course.shares(descent.steps, z)
        origins = [(begin, left)]
        if anchor is not None and came is not None:
            origins.append((anchor, came))
        bias = [self._bias(origins, moved)] if self.has_bias else []
        ends = [end.flatten(1) for end in (*bias, *upper)]
        rest = torch.cat(ends, 1) if ends else z.new_empty(len(z), 0)
        return Lazy(Moved(origins, moved, x, rest, self.width * x.shape[2]))

    def _first_outputs(self, origin: Origin, x: Tensor) -> Tensor:
        """The first layer's outputs [m, h, n] of every client's model."""
        if not origin.shared:
            return self._first(self._split(origin.models), x)
        first, bias, _ = self._layers(origin.models)
        z = first.new_empty(len(x), first.shape[1], x.shape[1])
        activations(first, bias, origin.index, x, None, z)
        return z

    def _bias(self, origins: list[tuple[Origin, Tensor | None]], moved: Tensor | None) -> Tensor:
        """Where the first layer's bias [m, h] ends, from the origins and how far outputs moved."""
        end = torch.zeros((), device=origins[0][0].models.device)
        for origin, share in origins:
            bias = self._split(origin.models)[1][origin.index]
            end = end + (bias if share is None else share[:, None] * bias)
        return end if moved is None else end + moved.sum(2)

    def _gram(self, x: Tensor, ids: Tensor | None) -> Tensor:
        """The inner products [b, n, n] of samples [b, n, f], of their 1 for the bias as well."""
        gram = self.grams.of(x, ids)
        return gram.add_(1) if self.has_bias else gram

    def _slopes_of(self, rows: Rows, batches: Batches | None) -> Callable[[slice, int], Slope]:
        """The derivative of the losses of some clients, in any step."""
        if batches is None:
            weight = rows.weights(self.task.layout.dtype)
            return lambda here, step: self._slope(rows.y[here], weight[here])
        place, weights = batches
        return lambda here, step: self._slope(
            rows.y[here].gather(1, place[here, step]), weights[here, step]
        )

    def _above(self, descent: Descent, anchor: Origin | None) -> Above:
        """How the weights above the first layer change in a step."""
        names = self.task.layout.names[1 + self.has_bias :]
        terms = Terms(
            self.task.layout,
            descent._replace(anchor=None if anchor is None else anchor.models),
        )
        if anchor is not None:
            terms.keep(names, anchor.index)
        equal = len(set(descent.steps)) == 1

        def step_above(
            here: slice, weights: list[Tensor], gradients: list[Tensor], step: int
        ) -> None:
            for name, weight, gradient in zip(names, weights, gradients, strict=True):
                if not terms.none:
                    gradient = terms.with_gradient(name, gradient, weight, here)
                    if not equal:
                        gradient = standing(gradient, descent.steps[here], step)
                weight.sub_(gradient, alpha=descent.lr)

        return step_above

    def _descend(self, weights: list[Tensor], rows: Rows, descent: Descent) -> list[Tensor]:
        """Descent on the weights themselves."""
        dtype, device = self.task.layout.dtype, rows.y.device
        equal = len(set(descent.steps)) == 1
        weight, batches = rows.weights(dtype), Batches.of(descent, dtype, device)
        x, y = rows.x, rows.y
        now = [piece.clone() for piece in weights]
        terms = Terms(self.task.layout, descent)
        for step in range(max(descent.steps)):
            if batches is not None:
                weight = batches.weight[:, step]
                x, y, _ = rows.take(batches.place[:, step])
            if terms.none and equal:
                self._step(now, x, y, weight, descent.lr)
                continue
            gradients = self._gradients(now, x, y, weight)
            for name, piece, gradient in zip(self.task.layout.names, now, gradients, strict=True):
                gradient = terms.with_gradient(name, gradient, piece)
                if not equal:
                    gradient = standing(gradient, descent.steps, step)
                piece.sub_(gradient, alpha=descent.lr)
        return now

    def _split(self, models: Tensor) -> list[Tensor]:
        return list(self.task.layout.unflatten(models).values())

    def _layers(self, models: Tensor) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The first layer's weights [k, h, f] and bias [k, h], and the weights above it."""
        first, *others = self._split(models)
        return (first, others[0], others[1:]) if self.has_bias else (first, None, others)

    def _outputs(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """What the network makes of samples [m, n, ...] with clients' own weights: [m, n, c]."""
        z = self._first(weights, x.flatten(2))
        return self.stack.outputs(z, weights[1 + self.has_bias :]).mT

    def _first(self, weights: list[Tensor], x: Tensor) -> Tensor:
        """The first layer's outputs [m, h, n] for samples [m, n, f]."""
        if self.has_bias:
            return torch.baddbmm(weights[1][:, :, None], weights[0], x.mT)
        return torch.bmm(weights[0], x.mT)

    def _gradients(
        self, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> list[Tensor]:
        slopes, upper = self._slopes(weights, x, y, weight)
        bias = [slopes.sum(2)] if self.has_bias else []
        return [torch.bmm(slopes, x.flatten(2)), *bias, *upper]

    def _slopes(
        self, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The derivatives by the first layer's outputs [m, h, n], and by the weights above it."""
        z = self._first(weights, x.flatten(2))
        return self.stack.gradients(z, weights[1 + self.has_bias :], self._slope(y, weight))

    def _step(self, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, lr: float) -> None:
        """A plain gradient step in place; the first layer's gradient is never by itself."""
        slopes, upper = self._slopes(weights, x, y, weight)
        weights[0].baddbmm_(slopes, x.flatten(2), alpha=-lr)
        bias = [slopes.sum(2)] if self.has_bias else []
        for piece, gradient in zip(weights[1:], [*bias, *upper], strict=True):
            piece.sub_(gradient, alpha=lr)

    def _slope(self, y: Tensor, weight: Tensor) -> Slope:
        """The derivative of the weighted losses by the outputs."""
        return lambda output: self.task.output_gradients(output, y).mul_(weight[:, None])


def of_chosen(z: Tensor, index: Tensor) -> Tensor:
    """Outputs [b, h, n] under the model [b] that each client chose, out of all [k, h, b, n].

    With J models [b, J] of each client they are [b, J, h, n].
    """
    client = torch.arange(len(index), device=index.device)
    return z[index, :, client.view(-1, *(1 for _ in index.shape[1:]))]
