"""What a client step sees: the data of some clients side by side, and the work it may ask for.

Every tensor has a leading client axis `m`. The simulator hands a step a chunk of clients, a device
on a network a cohort of one; the step cannot tell. `loss` and `descend` are where the time goes:
the engine's kernel does them in the fastest way that is exact for the task at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.cohort_rows import CohortRows
from coterie.core.errors import CoterieError
from coterie.core.kernel import Kernel, Objective, StepRule
from coterie.core.local_scores import BestModel, LocalScores
from coterie.core.local_work import LocalWork, OptimizerState, Pull, Steps
from coterie.core.rows import Rows
from coterie.core.samples import as_batch
from coterie.core.step_checks import check_kept_rows, check_models
from coterie.core.task import Task
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import to_device
from coterie.tensors.optimizers import BETAS


class Memory(Protocol):
    """What clients keep for themselves between rounds; it never crosses the network."""

    def remembers(self, name: str, ids: Tensor) -> Tensor: ...
    def recall(self, name: str, ids: Tensor) -> Tensor: ...
    def keep(self, name: str, ids: Tensor, value: Tensor) -> None: ...
    def mark(self) -> None:
        """Hold on to what is kept now, in the place of what was marked before."""

    def exchange(self) -> None:
        """Let what was marked be what is kept, and the other way round."""

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything that is kept, and what was marked, as a checkpoint holds it."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what a checkpoint holds; other tensors are ignored."""


class Cohort:
    """The clients `ids` in round `round`: their data, their memory, and work on both."""

    def __init__(
        self,
        ids: Tensor,
        rows: Rows,
        task: Task,
        kernel: Kernel,
        memory: Memory,
        *,
        round: int,
        address: tuple[int | str, ...],
        complete: bool = True,
    ) -> None:
        self._on = CohortRows(ids, rows, complete)
        self._device = self._on.device  # of all that a step sees
        self.ids = ids if rows.y.is_cpu else ids.to(self._device)  # [m]
        self.task = task
        self.round = round
        self._kernel = kernel
        self._memory = memory
        self._address = address  # (seed, ...): where the randomness of this step begins
        self._draws = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """The features [n_i, ...] and targets [n_i] of one client after another.

        Sequences come `Padded`, several inputs as `Inputs` (core/samples.py).
        """
        for x, y, size in zip(*self._on.rows[:2], self._on.sizes, strict=True):
            yield as_batch(x[:size]), as_batch(y[:size])

    @property
    def size(self) -> Tensor:
        """How many samples each client has, [m]."""
        return self._on.rows.size

    @property
    def mask(self) -> Tensor:
        """Which rows count, [m, n]: clients with fewer than n samples are padded."""
        return self._on.rows.mask

    def generators(self, purpose: str) -> list[torch.Generator]:
        """A generator for each client, m of them, on the CPU (draw with device="cpu").

        What it draws depends on the step, the client and the purpose alone: a client draws the same
        in any company. Asked again for the same purpose in the same step, it begins anew.
        """
        return [seeds.generator(*self._address, i, purpose) for i in self._on.ids.tolist()]

    def loss(self, models: Tensor) -> Tensor:
        """The mean loss [m, k] of each client under models [k, d], or under its own [m, k, d].

        A model that has diverged has infinite loss, never NaN, so that nobody chooses it; so has
        every model where a client has no sample.
        """
        check_models("`models`", models, self.task.layout.size, ["k"], [len(self), "k"])
        with torch.no_grad():
            return self._scores.loss(models)

    def losses(self, models: Tensor) -> Tensor:
        """The loss [m, n, k] of every sample under models [k, d], or a client's own [m, k, d].

        Rows outside `mask` have loss 0; elsewhere a model that has diverged has infinite loss.
        """
        check_models("`models`", models, self.task.layout.size, ["k"], [len(self), "k"])
        with torch.no_grad():
            return self._scores.losses(models)

    def choose(self, models: Tensor) -> BestModel:
        """The model of [k, d] with the lowest mean loss on each client's data, as `loss` has it.

        To train the chosen model on from here costs less than to train `models[cluster]`.
        """
        check_models("`models`", models, self.task.layout.size, ["k"])
        with torch.no_grad():
            return self._scores.choose(models)

    def score(self, model: Tensor) -> Tensor:
        """The task's sums [m, s] for each client under its row of `model` [m, d].

        They are 0 for a client without samples.
        """
        with torch.no_grad():
            return self._scores.score(model)

    def score_mixture(self, models: Tensor, shares: Tensor) -> Tensor:
        """The task's sums [m, s] where each client mixes models [k, d] in its shares [m, k]."""
        with torch.no_grad():
            return self._scores.score_mixture(models, shares)

    def gradient(
        self,
        model: Tensor,
        *,
        batch: int = 0,
        weights: Tensor | None = None,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        statistics: bool | None = None,
    ) -> Tensor:
        """The gradient of each client's mean loss at its row of `model` [m, d], of that shape.

        With `model` [m, k, d] each client has k models. `batch` samples of each client make a
        stochastic gradient; 0: all of them. `weights` are those of `descend`, and so is `clip`, the
        largest norm that a gradient may have. The objective may carry weight_decay/2 |w|^2, over
        all but intercepts. A client without samples, or without weight, has gradient 0.

        Buffers have no gradient: w - lr g leaves the running statistics of batch normalisation
        where they are, of which a warning is given. With `statistics`, what they were less what
        they are after the batch stands in their place, and `Layout.step` makes a step of both;
        `descend` with steps=1 does the same. Without (False), they are meant to stay.
        """
        check_models("`model`", model, self.task.layout.size, [len(self)], [len(self), "k"])
        return self._work.gradient(
            self._next_address(),
            model,
            batch=batch,
            weights=weights,
            weight_decay=weight_decay,
            clip=clip,
            statistics=statistics,
        )

    def descend(
        self,
        start: Tensor,
        *,
        lr: float,
        steps: int = 0,
        epochs: int = 0,
        batch: int = 0,
        weights: Tensor | None = None,
        part: Tensor | str | None = None,
        pull: float | Tensor = 0.0,
        anchor: Tensor | None = None,
        weight_decay: float = 0.0,
        optimizer: str = "sgd",
        momentum: float = 0.9,
        clip: float = 0.0,
    ) -> Tensor:
        """Gradient descent of each client on its own mean loss, from its row of `start` [m, d].

        `batch` samples make one gradient (0: all of them), drawn without replacement, the last
        batch of a pass being the smaller one. Either `steps` gradient steps are made, through as
        many passes as that takes, or `epochs` whole passes. `part` names the coordinates that
        move, as `Layout.part` does or by its mask [d]. The objective may carry
        pull/2 |w - anchor|^2, with one strength for all coordinates or one for each [d], and
        weight_decay/2 |w|^2, which is over all coordinates but intercepts: tensors named bias.

        With `weights` [m, n] the loss of sample i counts w_i times: a step on b samples follows the
        gradient of sum w_i loss_i / b. With `start` [m, k, d] each client trains k models, each as
        it would alone; weights are then [m, n] or [m, n, k], anchors [m, d] or [m, k, d]. A client
        without samples, or a model without weight, stands still.

        `optimizer` is sgd, momentum (with that share of the last step) or adam, as `torch.optim`
        has them; every call begins with a fresh one. The norm of the gradient of losses and pull
        over what moves is at most `clip`, if that is not 0, as `clip_grad_norm_` does it; weight
        decay is added afterwards, as the optimisers of PyTorch do.
        """
        if (steps > 0) == (epochs > 0):
            raise CoterieError(
                f"`descend` must be given either steps or epochs, got {steps} and {epochs}"
            )
        check_models("`start`", start, self.task.layout.size, [len(self)], [len(self), "k"])
        strength = None
        if anchor is not None:
            strength = torch.as_tensor(pull, dtype=start.dtype, device=self._device)
            strength = strength.expand(start.shape[-1])
        return self._work.descend(
            self._next_address(),
            start,
            StepRule(lr, optimizer, momentum, clip).check(),
            Steps(steps, epochs, batch),
            weights=weights,
            moves=self._part(part),
            pull=Pull(strength, anchor, weight_decay),
        )

    def minimise(
        self,
        objective: Objective,
        start: Tensor,
        *,
        lr: float,
        steps: int,
        batch: int = 0,
        part: Tensor | str | None = None,
        weight_decay: float = 0.0,
        optimizer: str = "sgd",
        momentum: float = 0.9,
        clip: float = 0.0,
        betas: tuple[float, float] = BETAS,
        state: OptimizerState | None = None,
    ) -> Tensor:
        """Descent of each client on an objective of one's own, from its row of `start` [m, d].

        With `start` [m, k, d] each client has k models, each of which goes as it would alone.
        `objective(call, x, y, generator)` gives a scalar from a batch of one client: `call(None,
        x)` runs the network with the client's present parameters, `call("critic", x)` its submodule
        of that name, and `generator` is the client's own. Only `part` moves (running statistics
        too), so that several networks of one module are trained in turn. `betas` are those of adam;
        the rest is as in `descend`. An optimiser begins anew with every call, unless a `state` is
        passed from call to call:

            critic, generator = OptimizerState(), OptimizerState()
            for _ in range(rounds):
                w = cohort.minimise(realism, w, part="critic", state=critic, steps=5, **adam)
                w = cohort.minimise(deceit, w, part="generator", state=generator, steps=1, **adam)

        Clients are worked on one after another, whatever the kernel.
        """
        check_models("`start`", start, self.task.layout.size, [len(self)], [len(self), "k"])
        end, after = self._work.minimise(
            self._next_address(),
            objective,
            start,
            StepRule(lr, optimizer, momentum, clip, betas).check(),
            Steps(steps, 0, batch),
            moves=self._part(part),
            weight_decay=weight_decay,
            before=None if state is None else state.rows,
        )
        if state is not None:
            state.rows = after
        return end

    @property
    def _scores(self) -> LocalScores:
        """The work that leaves models as they are."""
        return LocalScores(self._on, self._kernel)

    @property
    def _work(self) -> LocalWork:
        """The work that moves models."""
        return LocalWork(self._on, self.task, self._kernel)

    def _part(self, part: Tensor | str | None) -> Tensor | None:
        """The coordinates [d] of a part that may be given by its name."""
        return self.task.layout.part(part).to(self._device) if isinstance(part, str) else part

    def split(self, share: float) -> tuple[Cohort, Cohort]:
        """The same clients with `share` of their samples, and with the rest, which is held out.

        A client's two parts are the same whenever it is asked, whatever its id, and both have a
        sample; the only sample of a client is in both.
        """
        kept, held = self._on.hold_out(share, self._address[0])
        return self._with_samples(kept, "kept"), self._with_samples(held, "held")

    def training_part(self, share: float) -> Cohort:
        """The same clients with the `share` of their samples that `split` keeps; 1: with all."""
        return self if share >= 1 else self.split(share)[0]

    def disjoint_part(self, which: int, of: int) -> Cohort:
        """The same clients with one of `of` disjoint parts of their samples, counted from 0.

        Parts differ by one sample at most, the first being the larger ones, and all of them
        together are all samples. As in `split`, a client's parts are the same whenever it is asked,
        whatever its id.
        """
        chosen = self._on.disjoint(which, of, self._address[0])
        return self._with_samples(chosen, f"part {which}")

    def subset(self, places: Tensor) -> Cohort:
        """The clients at `places` [a] among these; their randomness begins anew."""
        return self._cohort(self._on.subset(places), self._address)

    def among(self, chosen: Tensor) -> Cohort:
        """The same clients with those of their samples that `chosen` [m, n] names.

        A client may be left without any: it then has infinite loss, scores 0 and stands still.
        """
        return self._with_samples(self._on.rows_in(chosen), "among")

    def by_label(self, label: Tensor, k: int) -> Cohort:
        """m k clients in the place of m: the samples of each with label 0, then those with 1, ...

        `label` [m, n] is from 0 to k - 1. With several labels for each sample, [m, n, r], they are
        m r k clients: for every client, those of its first label come first. A client may be left
        without samples of a label, and then stands still there. What is drawn differs from label
        to label. They remember nothing.
        """
        return self._cohort(self._on.by_label(label, k), (*self._address, "by label"))

    def _with_samples(self, chosen: list[Tensor], purpose: str) -> Cohort:
        """The same clients with the rows `chosen[i]` of each client i only."""
        return self._cohort(self._on.with_samples(chosen), (*self._address, purpose))

    def _cohort(self, on: CohortRows, address: tuple[int | str, ...]) -> Cohort:
        """A cohort of the same round on other rows."""
        return Cohort(
            on.ids,
            on.rows,
            self.task,
            self._kernel,
            self._memory,
            round=self.round,
            address=address,
            complete=on.complete,
        )

    def _next_address(self) -> tuple[int | str, ...]:
        """Where the randomness of the next call begins."""
        self._draws += 1
        return (*self._address, self._draws)

    def remembers(self, name: str) -> Tensor:
        """Which clients kept something under `name`, [m]."""
        known: Tensor = to_device(self._memory.remembers(name, self._on.ids), self._device)
        return known

    def recall(self, name: str, default: Tensor | None = None) -> Tensor:
        """What each client kept under `name`, [m, ...]; its row of `default` if it kept nothing."""
        known = self._memory.remembers(name, self._on.ids)
        if default is None:
            if not bool(known.all()):
                raise CoterieError(
                    f"`recall` must be given a default for clients who never kept {name}, as is "
                    f"client {int(self._on.ids[~known][0])}"
                )
        elif not bool(known.any()):
            return default
        rows: Tensor = to_device(self._memory.recall(name, self._on.ids), self._device)
        if default is None:
            return rows
        known = to_device(known, self._device).view(-1, *(1 for _ in default.shape[1:]))
        return torch.where(known, rows, default)

    def keep(self, name: str, value: Tensor) -> None:
        """Let each client keep its row of `value` [m, ...] until a later round.

        A client that never takes part, but is served, keeps nothing.
        """
        check_kept_rows(name, value, len(self))
        self._memory.keep(name, self._on.ids, to_device(value, CPU))
