"""How the work on a cohort is done: one client after another, or a chunk in batched products.

`PerClient` takes any network and is the reference. `Batched` takes stacks of linear layers and
activations and works on all clients of a chunk at once. `kernel_for` chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.cohort import Descent, Kernel, Rows, Seeds, finite
from coterie.core.errors import DataError
from coterie.core.lazy import Lazy, Picked, as_picked, dense, picked
from coterie.core.task import Task
from coterie.engine import race, sample_space
from coterie.engine.stack import ELEMENTWISE, Slope, Stack

# What the first layer's outputs of a block of clients under k shared models may occupy.
SHARED_BYTES = 4 * 2**20


def kernel_for(task: Task, sample_axes: int = 1) -> Kernel:
    """The fastest kernel that is exact for the network of `task` on samples with so many axes."""
    return Batched(task) if Batched.takes(task.module, sample_axes) else PerClient(task)


def inside(rows: Rows) -> Tensor:
    """Which rows count and are not padding, [m, n]."""
    return torch.arange(rows.y.shape[1]) < rows.size[:, None]


class PerClient:
    """One client after another, by automatic differentiation; for any network.

    Losses and scores are computed in evaluation mode, gradients in training mode. What a network
    draws (dropout) comes from the client's own seed.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        own = models.expand(len(rows.size), *models.shape[-2:])
        return torch.stack(
            [
                torch.stack([self._loss(model, x, y) for model in client])
                for client, x, y in self._clients(own, rows)
            ]
        )

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        index = finite(self.losses(models, rows)).argmin(1)
        return index, picked(models, index)

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return torch.cat(
            [
                self.task.score(self._output(model, x)[None], y[None], torch.ones(1, len(y)))
                for model, x, y in self._clients(models, rows)
            ]
        )

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        gradients = torch.zeros_like(models)
        width = self.task.layout.trained_size
        with training(self.task.module), torch.random.fork_rng(devices=[]):
            for i, (model, x, y) in enumerate(self._clients(models, rows)):
                torch.manual_seed(seeds[i])
                trained, carried = self._open(model)
                gradients[i, :width] = flat(self._gradients(trained, carried, x, y))
        return gradients

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        ends = torch.empty_like(start)
        with training(self.task.module), torch.random.fork_rng(devices=[]):
            for i, (model, x, y) in enumerate(self._clients(start, rows)):
                torch.manual_seed(descent.seeds[i])
                ends[i] = self._descend_one(model, x, y, i, descent)
        return ends

    def _descend_one(self, model: Tensor, x: Tensor, y: Tensor, i: int, descent: Descent) -> Tensor:
        trained, carried = self._open(model)
        layout = self.task.layout
        anchor = pull = None
        if descent.anchor is not None and descent.pull is not None:
            anchor, pull = layout.unflatten(descent.anchor[i]), layout.unflatten(descent.pull)
        moves = None if descent.only is None else layout.unflatten(descent.only.to(model.dtype))
        for step in range(descent.steps[i]):
            batch: slice | Tensor = slice(None)
            if descent.batches is not None:
                row = descent.batches[i][step]
                batch = row[row >= 0]
            gradients = self._gradients(trained, carried, x[batch], y[batch])
            with torch.no_grad():
                for (name, weight), gradient in zip(trained.items(), gradients, strict=True):
                    if anchor is not None and pull is not None:
                        gradient = gradient + pull[name] * (weight - anchor[name])
                    if descent.weight_decay:
                        gradient = gradient + descent.weight_decay * weight
                    if moves is not None:
                        gradient = gradient * moves[name]
                    weight -= descent.lr * gradient
        if moves is not None:
            # Carried tensors outside the moving part stay, whatever the layers did to them.
            before = layout.unflatten(model)
            carried = {n: torch.where(moves[n].bool(), c, before[n]) for n, c in carried.items()}
        return flat([*trained.values(), *carried.values()]).to(model.dtype)

    def _clients(self, models: Tensor, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(model or models, features, targets) of one client after another, without padding."""
        for model, x, y, size in zip(models, rows.x, rows.y, rows.size.tolist(), strict=True):
            # A copy, for a network may work in place.
            yield model, x[:size].clone(), y[:size]

    def _open(self, model: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of a model's tensors: those that are trained, and the rest."""
        tensors = self.task.layout.unflatten(model.detach())
        trained = self.task.layout.trained
        return (
            {name: tensors[name].clone().requires_grad_() for name in trained},
            {name: t.clone() for name, t in tensors.items() if name not in trained},
        )

    def _gradients(
        self, trained: dict[str, Tensor], carried: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        try:
            output = functional_call(self.task.module, {**trained, **carried}, (x,))
        except ValueError as error:  # batch normalisation of a single sample, for example
            raise DataError(f"the network cannot train on a batch of {len(x)}: {error}") from error
        loss = self.task.losses(output, y).mean()
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return [
            torch.zeros_like(weight) if gradient is None else gradient
            for weight, gradient in zip(trained.values(), found, strict=True)
        ]

    def _output(self, model: Tensor, x: Tensor) -> Tensor:
        module = self.task.module
        module.eval()
        output: Tensor = functional_call(module, self.task.layout.unflatten(model), (x,))
        return output

    def _loss(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.task.losses(self._output(model, x), y).mean()


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Training mode for a while, evaluation mode afterwards."""
    module.train()
    try:
        yield
    finally:
        module.eval()


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

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        if models.dim() == 2:
            return torch.cat([losses for _, losses in self._under(models, rows)])
        mask = inside(rows).to(models.dtype) / rows.size[:, None]
        each = [
            self.task.losses(self._outputs(self._split(own), rows.x), rows.y)
            for own in models.unbind(1)
        ]
        return torch.stack([(losses * mask).sum(1) for losses in each], 1)

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if len(models) == 1:
            return (only := torch.zeros(len(rows.y), dtype=torch.long)), picked(models, only)
        longest = rows.y.shape[1]
        cut = race.first_lap(longest) if self.task.losses_at_least_zero else longest
        lap = Rows(rows.x[:, :cut], rows.y[:, :cut], rows.size.clamp_max(cut))
        rest = Rows(rows.x[:, cut:], rows.y[:, cut:], rows.size - lap.size)
        blocks = list(self._under(models, lap, rows.size))
        losses = finite(torch.cat([losses for _, losses in blocks]))

        def finish(j: int, clients: Tensor) -> tuple[Tensor, Tensor]:
            everybody = len(clients) == len(losses)
            some = rest if everybody else Rows(*(part[clients] for part in rest))
            found = list(self._under(models[j : j + 1], some, rows.size[clients]))
            z = torch.cat([z[0].transpose(0, 1) for z, _ in found])
            return z, torch.cat([losses[:, 0] for _, losses in found])

        if cut < longest:
            index, last = race.finished(losses, cut / longest, finish)
        else:
            index, last = losses.argmin(1), rows.x.new_empty(0)
        each = zip(blocks, index.split([len(losses) for _, losses in blocks]), strict=True)
        z = torch.cat([z[best, :, torch.arange(len(best))] for (z, _), best in each])
        activations = torch.cat([z, last], 2) if cut < longest else z
        return index, Lazy(Picked(models, index, activations))

    def _under(
        self, models: Tensor, rows: Rows, count: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The clients under shared models [k, d], a block of clients at a time.

        Gives the first layer's outputs [k, h, b, n] and the mean losses [b, k]: all rows of the
        block and all models are one long product. The mean is over `count` [m] samples if these are
        only some of them.
        """
        first, *others = self._split(models)
        bias, upper = others[: self.has_bias], others[self.has_bias :]
        k, h, n = len(models), first.shape[1], rows.y.shape[1]
        block = max(1, SHARED_BYTES // (k * h * n * models.element_size()))
        parts = (*rows, rows.size if count is None else count)
        for x, y, size, whole in zip(*(part.split(block) for part in parts), strict=True):
            samples = x.flatten(0, 1).flatten(1)
            z = (first.flatten(0, 1) @ samples.T).view(k, h, len(samples))
            for b in bias:
                z += b[:, :, None]
            output = self.stack.outputs(z, upper).mT  # [k, b n, c]
            losses = self.task.losses(output, y.flatten(0, 1).expand(k, *y.flatten(0, 1).shape))
            mask = inside(Rows(x, y, size)).to(models.dtype) / whole[:, None]
            yield z.view(k, h, *y.shape[:2]), (losses.view(k, *y.shape[:2]) * mask).sum(2).T

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        return self.task.score(self._outputs(self._split(models), rows.x), rows.y, inside(rows))

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        weight = inside(rows).to(models.dtype) / rows.size[:, None]
        gradients = self._gradients(self._split(models), rows.x, rows.y, weight)
        return torch.cat([gradient.flatten(1) for gradient in gradients], 1)

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        if sample_space.pays(rows, descent):
            return self._descend_in_sample_space(start, rows, descent)
        ends = self._descend(self._split(start), rows, descent)
        return torch.cat([end.flatten(1) for end in ends], 1)

    def _descend_in_sample_space(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        """Descent that carries activations along in place of the first layer's weights."""
        x = rows.x.flatten(2)
        shared = as_picked(start)
        models = dense(start) if shared is None else shared.models
        index = torch.arange(len(x)) if shared is None else shared.index
        first, *others = self._split(models)
        bias, upper = (others[0], others[1:]) if self.has_bias else (None, others)
        if shared is None:
            z = self._first([first, *others], x)
        elif shared.activations is None:
            z = sample_space.activations(first, bias, index, x)
        else:
            z = shared.activations
        weight = inside(rows).to(models.dtype) / rows.size[:, None]
        moved, ends = sample_space.descend(
            z,
            x,
            None if bias is None else bias[index],
            [layer[index] for layer in upper],
            self.stack,
            lambda here: self._slope(rows.y[here], weight[here]),
            descent,
        )
        width = first[0].numel()
        begin = models[:, :width] if shared is None else Picked(models[:, :width], index)
        rest = torch.cat([end.flatten(1) for end in ends], 1)
        return Lazy(sample_space.Moved(begin, moved, x, rest))

    def _descend(self, weights: list[Tensor], rows: Rows, descent: Descent) -> list[Tensor]:
        """Descent on the weights themselves."""
        dtype = self.task.layout.dtype
        client = torch.arange(len(rows.y))[:, None]
        steps = torch.tensor(descent.steps)
        equal = bool((steps == steps[0]).all())
        batches = None if descent.batches is None else stacked(descent.batches)
        weight = inside(rows).to(dtype) / rows.size[:, None]
        x, y = rows.x, rows.y
        now = [piece.clone() for piece in weights]
        anchor = None if descent.anchor is None else self._split(descent.anchor)
        pull = None if descent.pull is None else self._split(descent.pull[None])
        moves = None if descent.only is None else self._split(descent.only[None].to(dtype))
        for step in range(int(steps.max())):
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


def flat(tensors: list[Tensor]) -> Tensor:
    """Tensors one after another in one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
