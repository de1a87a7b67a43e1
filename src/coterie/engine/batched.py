"""The work on a chunk of clients done at once, in batched products, for stacks of linear layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from coterie.core.cohort import Descent, Rows, Seeds, finite
from coterie.core.devices import room
from coterie.core.lazy import Lazy, Picked, as_picked, dense, picked
from coterie.core.task import Task
from coterie.engine import race, sample_space
from coterie.engine.stack import ELEMENTWISE, Slope, Stack

# What the weights of clients that are worked on at a time may occupy: more than this falls out of
# the cache and slows down.
WEIGHT_BYTES = 16 * 2**20
# What the first layer's outputs of a block of clients under k shared models may occupy.
SHARED_BYTES = 8 * 2**20


class Batched:
    """All clients of a chunk in batched matrix products; for stacks of linear layers."""

    @staticmethod
    def takes(module: nn.Module, sample_axes: int = 1) -> bool:
        """Whether `module` is a plain stack: linear layers with activations between them.

        It may begin by flattening, which it must for samples of more than one axis. Weights that
        are frozen, shared or computed by hooks are not plain.
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
            and not any(hooked(part) for part in module.modules())
            and not list(module.buffers())
        )

    def __init__(self, task: Task) -> None:
        self.task = task
        layers = [layer for layer in flat_layers(task.module) if not isinstance(layer, nn.Flatten)]
        self.has_bias = layers[0].bias is not None  # of the first linear layer
        self.stack = Stack(layers[1:])
        self.grams = sample_space.Grams()

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        if models.dim() == 2:
            return torch.cat([losses for _, losses in self._under(models, rows)])
        mask = rows.weights(models.dtype)
        each = [
            self.task.losses(self._outputs(self._split(own), rows.x), rows.y)
            for own in models.unbind(1)
        ]
        return torch.stack([(losses * mask).sum(1) for losses in each], 1)

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if len(models) == 1:
            return (only := torch.zeros_like(rows.size)), picked(models, only)
        n = rows.y.shape[1]
        cut = race.first_lap(n) if self.task.losses_at_least_zero else 0
        lap = Rows(rows.x[:, :cut], rows.y[:, :cut], rows.size.clamp_max(cut))
        rest = Rows(rows.x[:, cut:], rows.y[:, cut:], rows.size - lap.size)
        z = models.new_empty(len(rows.y), self._layers(models)[0].shape[1], n)
        early, losses = self._runs(models, lap, rows.size) if cut else ([], None)
        if losses is None or race.is_close(losses, cut / n):
            # Nobody can be left behind: all models see all samples.
            late, more = self._runs(models, rest, rows.size)
            index = finite(more if losses is None else losses + more).argmin(1)
            put(late, index, z[:, :, cut:])
        else:
            index = race.finished(
                finite(losses),
                z[:, :, cut:],
                lambda clients, j, out: self._finish(models, j, rest, clients, rows.size, out),
            )
        put(early, index, z[:, :, :cut])
        return index, Lazy(Picked(models, index, z))

    def _finish(
        self, models: Tensor, index: Tensor, rows: Rows, clients: Tensor, count: Tensor, out: Tensor
    ) -> Tensor:
        """Mean losses [c] of model `index[i]` on the rows of client `clients[i]`.

        The mean is over `count` [m] samples. The first layer's outputs [c, h, n] are put into
        `out`.
        """
        x = rows.x.flatten(2)
        first, bias, upper = self._layers(models)
        block = max(1, room(models.device, SHARED_BYTES) // (out[0].numel() * out.element_size()))
        losses = []
        for j, i, z in zip(index.split(block), clients.split(block), out.split(block), strict=True):
            sample_space.activations(first, bias, j, x, i, z)
            output = self.stack.outputs(z, [layer[j] for layer in upper]).mT
            mask = Rows(x, rows.y[i], rows.size[i]).inside.to(models.dtype) / count[i][:, None]
            losses.append((self.task.losses(output, rows.y[i]) * mask).sum(1))
        return torch.cat(losses)

    def _runs(self, models: Tensor, rows: Rows, count: Tensor) -> tuple[list[Tensor], Tensor]:
        """All blocks of `_under`: the outputs of each, and the losses of everybody [m, k]."""
        blocks = list(self._under(models, rows, count))
        return [z for z, _ in blocks], torch.cat([losses for _, losses in blocks])

    def _under(
        self, models: Tensor, rows: Rows, count: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The clients under shared models [k, d], a block of clients at a time.

        Gives the first layer's outputs [k, h, b, n] and the mean losses [b, k]: all rows of the
        block and all models are one long product. The mean is over `count` [m] samples if these are
        only some of them.
        """
        first, bias, upper = self._layers(models)
        k, h, n = len(models), first.shape[1], rows.y.shape[1]
        room_here = room(models.device, SHARED_BYTES)
        block = max(1, room_here // (k * h * n * models.element_size()))
        parts = (*rows, rows.size if count is None else count)
        for x, y, size, whole in zip(*(part.split(block) for part in parts), strict=True):
            samples = x.flatten(0, 1).flatten(1)
            z = (first.flatten(0, 1) @ samples.T).view(k, h, len(samples))
            if bias is not None:
                z += bias[:, :, None]
            output = self.stack.outputs(z, upper).mT  # [k, b n, c]
            losses = self.task.losses(output, y.flatten(0, 1).expand(k, *y.flatten(0, 1).shape))
            mask = Rows(x, y, size).inside.to(models.dtype) / whole[:, None]
            yield z.view(k, h, *y.shape[:2]), (losses.view(k, *y.shape[:2]) * mask).sum(2).T

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return torch.cat(
            [
                self.task.score(self._outputs(weights, some.x), some.y, some.inside)
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
        if sample_space.pays(rows, descent):
            return self._descend_in_sample_space(start, rows, descent)
        found = torch.empty(start.shape, dtype=start.dtype, device=start.device)
        for here, weights, some in self._blocks(start, rows):
            ends = self._descend(weights, some, descent.of(here))
            torch.cat([end.flatten(1) for end in ends], 1, out=found[here])
        return found

    def _blocks(self, models: Tensor, rows: Rows) -> Iterator[tuple[slice, list[Tensor], Rows]]:
        """Clients with models [m, d] of their own, as many at a time as the cache holds.

        Gives which they are, their weights layer by layer, and their rows.
        """
        shared = as_picked(models)
        room_here = room(models.device, WEIGHT_BYTES)
        block = max(1, room_here // (models.shape[1] * models.element_size()))
        for begin in range(0, len(models), block):
            here = slice(begin, begin + block)
            own = dense(models)[here] if shared is None else shared.models[shared.index[here]]
            yield here, self._split(own), Rows(*(part[here] for part in rows))

    def _descend_in_sample_space(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        """Descent that carries activations along in place of the first layer's weights."""
        x = rows.x.flatten(2)
        shared = as_picked(start)
        models = dense(start) if shared is None else shared.models
        index = torch.arange(len(x), device=x.device) if shared is None else shared.index
        first, bias, upper = self._layers(models)
        if shared is None:
            z = self._first(self._split(models), x)
        elif shared.activations is None:
            z = models.new_empty(len(x), first.shape[1], x.shape[1])
            sample_space.activations(first, bias, index, x, None, z)
        else:
            z = shared.activations
        weight = rows.weights(models.dtype).mul_(-descent.lr)
        ids = descent.ids
        moved, ends = sample_space.descend(
            z,
            None if bias is None else bias[index],
            [layer[index] for layer in upper],
            self.stack,
            lambda here: self._slope(rows.y[here], weight[here]),
            lambda here: self.grams.of(x[here], None if ids is None else ids[here]),
            descent.steps[0],
        )
        width = first[0].numel()
        begin = models[:, :width] if shared is None else Picked(models[:, :width], index)
        rest = torch.cat([end.flatten(1) for end in ends], 1)
        return Lazy(sample_space.Moved(begin, moved, x, rest))

    def _descend(self, weights: list[Tensor], rows: Rows, descent: Descent) -> list[Tensor]:
        """Descent on the weights themselves."""
        dtype, device = self.task.layout.dtype, rows.y.device
        client = torch.arange(len(rows.y), device=device)[:, None]
        steps = torch.tensor(descent.steps, device=device)
        equal = len(set(descent.steps)) == 1
        batches = None if descent.batches is None else stacked(descent.batches).to(device)
        weight = rows.weights(dtype)
        x, y = rows.x, rows.y
        now = [piece.clone() for piece in weights]
        anchor = None if descent.anchor is None else self._split(descent.anchor)
        pull = None if descent.pull is None else self._split(descent.pull[None])
        moves = None if descent.only is None else self._split(descent.only[None].to(dtype))
        for step in range(max(descent.steps)):
            if batches is not None:
                row = batches[:, step]  # [m, b]
                chosen = row >= 0
                weight = chosen / chosen.sum(1, keepdim=True).clamp_min(1).to(dtype)
                x, y = rows.x[client, row.clamp_min(0)], rows.y[client, row.clamp_min(0)]
            gradients = self._gradients(now, x, y, weight)
            for j, gradient in enumerate(gradients):
                if anchor is not None and pull is not None:
                    gradient = gradient + pull[j] * (now[j] - anchor[j])
                if descent.weight_decay:
                    gradient = gradient + descent.weight_decay * now[j]
                if moves is not None:
                    gradient = gradient * moves[j]
                if not equal:
                    # Clients with fewer steps have finished and stand still.
                    gradient = gradient * (step < steps).view(-1, *(1 for _ in gradient.shape[1:]))
                now[j].sub_(gradient, alpha=descent.lr)
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
        x = x.flatten(2)
        z = self._first(weights, x)
        slopes, upper = self.stack.gradients(
            z, weights[1 + self.has_bias :], self._slope(y, weight)
        )
        bias = [slopes.sum(2)] if self.has_bias else []
        return [torch.bmm(slopes, x), *bias, *upper]

    def _slope(self, y: Tensor, weight: Tensor) -> Slope:
        """The derivative of the weighted losses by the outputs."""
        return lambda output: self.task.slopes(output, y).mul_(weight[:, None])


def put(z: list[Tensor], index: Tensor, out: Tensor) -> None:
    """First-layer outputs under the model that each client chose into `out` [m, h, n], out of
    blocks of those under all of them [k, h, b, n]."""
    begin = 0
    for block in z:
        here = slice(begin, begin := begin + block.shape[2])
        best = index[here]
        out[here] = block[best, :, torch.arange(len(best), device=best.device)]


def hooked(module: nn.Module) -> bool:
    """Whether something is called before or after this layer, as weight normalisation is."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def flat_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `Sequential` modules, in order; the module itself if it is none."""
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module for layer in flat_layers(child)]


def stacked(batches: list[Tensor]) -> Tensor:
    """Mini-batches of clients with different numbers of steps as one tensor [m, steps, b]."""
    return nn.utils.rnn.pad_sequence(batches, batch_first=True, padding_value=-1)
