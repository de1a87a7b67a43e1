"""What a cohort asks of the engine: the work on clients' samples, and how it is told what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.rows import Rows
from coterie.tensors.optimizers import BETAS, OPTIMIZERS, Optimizer

# (call, x, y, generator) -> what a client minimises, a scalar; see `Cohort.minimise`
Objective = Callable[[Callable[..., Any], Tensor, Tensor, torch.Generator], Tensor]


class Seeds(Protocol):
    """A seed for each client of a cohort."""

    def __getitem__(self, i: int, /) -> int: ...


@dataclass(frozen=True)
class ClientSeeds:
    """Seeds that are derived only when a network that draws asks for them; most never do."""

    address: tuple[int | str, ...]
    ids: Tensor  # [m]
    purpose: str = "noise"

    def __getitem__(self, i: int) -> int:
        return seeds.derive(*self.address, int(self.ids[i]), self.purpose)


class StepRule(NamedTuple):
    """How a gradient becomes a step, as `torch.optim` has it."""

    lr: float  # step size
    optimizer: str = "sgd"  # or momentum, adam
    momentum: float = 0.9  # of the optimiser of that name
    clip: float = 0.0  # the largest norm of a client's gradient; 0: any
    betas: tuple[float, float] = BETAS  # of adam

    def begin_optimizer(self) -> Optimizer:
        """An optimiser that has made no step yet."""
        return Optimizer(self.optimizer, self.momentum, self.betas)

    def check(self) -> StepRule:
        """The rule itself; refuse an optimiser that nobody knows."""
        if self.optimizer not in OPTIMIZERS:
            near = did_you_mean(self.optimizer, OPTIMIZERS)
            raise SettingError(
                f"`optimizer` must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer}{near}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SettingError(f"`betas` must be at least 0 and below 1, got {self.betas}")
        return self


class Descent(NamedTuple):
    """One call of `Cohort.descend`, as a kernel needs it."""

    rule: StepRule
    steps: list[int]  # [m] gradient steps of each client, at least 1
    # m of [steps, b], on the CPU: the rows of each step, -1 for none; None: all
    batches: list[Tensor] | None
    seeds: Seeds  # [m] for networks that draw, as dropout does
    part: Tensor | None = None  # [d] the coordinates that move; None: all
    pull: Tensor | None = None  # [d] strength of the pull towards the anchor; None: no pull
    anchor: Tensor | None = None  # [m, d]
    weight_decay: float = 0.0  # strength of the pull towards zero
    weights: Tensor | None = None  # [m, n] of samples, 0 for padding; None: 1
    # [m] whose samples the rows are, if they are all that these clients have; None: only some
    ids: Tensor | None = None

    def slice_clients(self, clients: slice) -> Descent:
        """The same for some of the clients, for networks that do not draw."""
        return self._replace(
            steps=self.steps[clients],
            batches=None if self.batches is None else self.batches[clients],
            anchor=None if self.anchor is None else self.anchor[clients],
            weights=None if self.weights is None else self.weights[clients],
            ids=None if self.ids is None else self.ids[clients],
        )


class Minimisation(NamedTuple):
    """One call of `Cohort.minimise`, as a kernel needs it."""

    objective: Objective
    rule: StepRule
    weight_decay: float
    part: Tensor | None  # [d] the coordinates that move; None: all
    batches: list[Tensor] | None  # m of [steps, b], as in `Descent`
    steps: list[int]  # [m] gradient steps of each client
    seeds: Seeds  # [m] of what a network draws
    generators: list[torch.Generator]  # [m] of what an objective draws
    state: Tensor | None  # [m, s] of the optimisers; None: they begin


class Kernel(Protocol):
    """How the work on a cohort is done. All kernels agree to rounding.

    Every client that they are asked about has a sample.
    """

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        """Mean losses [m, k] of models [k, d] shared by all clients, or [m, k, d] of their own."""

    def sample_losses(self, models: Tensor, rows: Rows) -> Tensor:
        """The losses [m, n, k] of samples under such models; those of padding may be anything."""

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Which of models [k, d] has each client's lowest mean loss [m], and that model [m, d]."""

    def gradient(
        self, models: Tensor, rows: Rows, seeds: Seeds, weights: Tensor | None = None
    ) -> Tensor:
        """Gradients [m, d] of each client's mean loss at its own model [m, d].

        The losses of samples count `weights` [m, n] times, if given. In place of a buffer's
        gradient stands by how much it would fall: what it was less what it is after the batch.
        """

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        """Each client's model [m, d] after gradient descent from its row of `start`."""

    def minimise(
        self, start: Tensor, rows: Rows, minimisation: Minimisation
    ) -> tuple[Tensor, Tensor]:
        """Each client's model [m, d] after descent on its objective; the optimisers' state."""

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        """The task's sums [m, s] for each client under its own model [m, d]."""

    def score_mixture(self, models: Tensor, rows: Rows, shares: Tensor) -> Tensor:
        """The same under a mixture of models [k, d] with each client's shares [m, k]."""
