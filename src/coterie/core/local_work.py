"""The work that moves models: gradients and descents of some clients, each on its own samples.

A client may have one model [d] or several [k, d], each of which goes as it would alone. Who has no
samples, and whose samples have no weight, stands still. How a gradient is computed is the kernel's
business.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.batches import batches_of_clients
from coterie.core.cohort_rows import CohortRows
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.kernel import ClientSeeds, Descent, Kernel, Minimisation, Objective, StepRule
from coterie.core.layout import keeps_statistics
from coterie.core.task import Task
from coterie.tensors.lazy import dense
from coterie.tensors.optimizers import clip_norms

Address = tuple[int | str, ...]  # where randomness begins


class OptimizerState:
    """What optimisers carry from one call of `Cohort.minimise` to the next; empty before the first.

    `rows` [m, s], with k models of each client [m, k, s], may be kept by the clients
    (`Cohort.keep`) to go on from in another round.
    """

    def __init__(self, rows: Tensor | None = None) -> None:
        self.rows = rows


class Steps(NamedTuple):
    """How far a descent goes: so many gradient steps, or whole passes over a client's samples."""

    steps: int
    epochs: int
    batch: int  # samples of a gradient; 0: all

    def counts(self, sizes: list[int]) -> list[int]:
        """The steps of clients with so many samples."""
        return [
            self.steps or self.epochs * (-(-size // self.batch) if self.batch else 1)
            for size in sizes
        ]


class Pull(NamedTuple):
    """The part of an objective that is no loss: pull/2 |w - anchor|^2 and weight_decay/2 |w|^2.

    The second is without intercepts.
    """

    strength: Tensor | None  # [d]; None: there is no anchor
    anchor: Tensor | None  # [m, d] or [m, k, d]
    weight_decay: float


class LocalWork(NamedTuple):
    """Some clients, what they learn, and how the work on them is done."""

    on: CohortRows
    task: Task
    kernel: Kernel

    def subset(self, places: Tensor) -> LocalWork:
        """The clients at `places` [a] among these."""
        return self._replace(on=self.on.subset(places))

    def gradient(
        self,
        address: Address,
        model: Tensor,
        *,
        batch: int,
        weights: Tensor | None,
        weight_decay: float,
        clip: float,
        statistics: bool | None,
    ) -> Tensor:
        """Gradients of the shape of `model`; 0 for clients without samples or weight."""
        layout = self.task.layout
        width = layout.trained_size
        if statistics is None and width < layout.size and keeps_statistics(self.task.module):
            warn_of_statistics()

        def work(some: LocalWork, model: Tensor, weights: Tensor | None, _: Any) -> Tensor:
            found = some.plain_gradient(address, model, weights, batch)
            if width < layout.size and not statistics:
                found[:, width:] = 0
            if clip:
                found[:, :width] = clip_norms([found[:, :width]], clip, 1)[0]
            if weight_decay:
                found[:, :width] += weight_decay * model[:, :width] * layout.decaying(model)
            return found

        weights = self.sample_weights(weights, model)
        return self.for_each_model(work, torch.zeros_like, model, weights)

    def plain_gradient(
        self, address: Address, model: Tensor, weights: Tensor | None, batch: int
    ) -> Tensor:
        """The gradient [m, d] of mean losses, maybe of some samples, as kernels give it."""
        on = self.on
        rows = on.rows
        batches = batches_of_clients(on.sizes, batch, [1] * len(on.sizes), address, on.ids)
        if batches is not None:
            place = on.pad([rows[0] for rows in batches])
            rows = on.take(place)
            weights = None if weights is None else weights.gather(1, place.clamp_min(0))
        return self.kernel.gradient(model, rows, ClientSeeds(address, on.ids), weights)

    def descend(
        self,
        address: Address,
        start: Tensor,
        rule: StepRule,
        far: Steps,
        *,
        weights: Tensor | None,
        moves: Tensor | None,
        pull: Pull,
    ) -> Tensor:
        """Where each client's gradient descent ends, of the shape of `start`."""

        def work(some: LocalWork, start: Tensor, weights: Any, anchor: Any) -> Tensor:
            on = some.on
            counts = far.counts(on.sizes)
            descent = Descent(
                rule,
                counts,
                batches_of_clients(on.sizes, far.batch, counts, address, on.ids),
                ClientSeeds(address, on.ids),
                moves,
                pull.strength,
                anchor,
                pull.weight_decay,
                weights,
                on.ids if on.complete else None,
            )
            return some.kernel.descend(start, on.rows, descent)

        weights = self.sample_weights(weights, start)
        return self.for_each_model(work, dense, start, weights, pull.anchor)

    def minimise(
        self,
        address: Address,
        objective: Objective,
        start: Tensor,
        rule: StepRule,
        far: Steps,
        *,
        moves: Tensor | None,
        weight_decay: float,
        before: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Where descents on an objective end, and the rows of their optimisers after them.

        There are no such rows where nobody has a sample.
        """
        models: Tensor = dense(start)
        if models.dim() == 3:
            given = [None] * models.shape[1] if before is None else before.unbind(1)
            options: dict[str, Any] = {"moves": moves, "weight_decay": weight_decay}
            found = [
                self.minimise(address, objective, model, rule, far, before=own, **options)
                for model, own in zip(models.unbind(1), given, strict=True)
            ]
            ends, rows = [end for end, _ in found], [own for _, own in found if own is not None]
            return torch.stack(ends, 1), torch.stack(rows, 1) if rows else before
        here = self.on.with_data
        if here is not None:
            if not len(here):
                return models.clone(), before
            own = None if before is None else before[here]
            end, after = self.subset(here).minimise(
                address,
                objective,
                models[here],
                rule,
                far,
                moves=moves,
                weight_decay=weight_decay,
                before=own,
            )
            assert after is not None
            kept = after.new_zeros(len(models), after.shape[1]) if before is None else before
            return models.index_copy(0, here, end), kept.index_copy(0, here, after)
        on = self.on
        counts = far.counts(on.sizes)
        work = Minimisation(
            objective,
            rule,
            weight_decay,
            moves,
            batches_of_clients(on.sizes, far.batch, counts, address, on.ids),
            counts,
            ClientSeeds(address, on.ids),
            [seeds.generator(*address, i, "objective") for i in on.ids.tolist()],
            before,
        )
        return self.kernel.minimise(models, on.rows, work)

    def sample_weights(self, weights: Tensor | None, models: Tensor) -> Tensor | None:
        """Weights [m, n] or [m, n, k] in the type of models, 0 for padding."""
        if weights is None:
            return None
        mask = self.on.rows.mask
        plain, each = tuple(mask.shape), (*mask.shape, *models.shape[1:-1])
        if tuple(weights.shape) not in (plain, each):
            shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys((plain, each)))
            raise CoterieError(
                f"the weights of samples must be {shapes}, got {list(weights.shape)}"
            )
        mask = mask.view(*plain, *(1 for _ in weights.shape[2:]))
        return torch.where(mask, weights.to(self.on.device, models.dtype), 0.0)

    def for_each_model(
        self,
        work: Callable[[LocalWork, Tensor, Tensor | None, Tensor | None], Tensor],
        still: Callable[[Tensor], Tensor],
        models: Tensor,
        weights: Tensor | None,
        anchor: Tensor | None = None,
    ) -> Tensor:
        """`work` on models [m, d], or [m, k, d] one after another, of clients who learn something.

        Clients without samples or weight have `still(models)`.
        """
        if models.dim() == 3:
            found = []
            for j, model in enumerate(models.unbind(1)):
                own = weights if weights is None or weights.dim() == 2 else weights[:, :, j]
                near = anchor if anchor is None or anchor.dim() == 2 else anchor[:, j]
                found.append(self.for_each_model(work, still, model, own, near))
            return torch.stack(found, 1)
        learn = self.on.with_data
        if weights is not None:
            counts = (weights != 0).any(1)
            learn = None if bool(counts.all()) else torch.nonzero(counts).flatten()
        if learn is None:
            return work(self, models, weights, anchor)
        rest = still(dense(models))
        if not len(learn):
            return rest.clone()
        chosen = (None if each is None else each[learn] for each in (weights, anchor))
        return rest.index_copy(0, learn, work(self.subset(learn), models[learn], *chosen))


def warn_of_statistics() -> None:
    """Warn that a gradient leaves running statistics alone."""
    warnings.warn(
        "a gradient leaves the running statistics of batch normalisation where they are: ask for "
        "`statistics=True` and make steps with `Layout.step`, or for False if they are meant to "
        "stay",
        CoterieWarning,
        stacklevel=4,
    )
