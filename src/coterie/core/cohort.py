"""What a client step sees: the data of some clients side by side, and the work it may ask for.

Every tensor has a leading client axis `m`. The simulator hands a step a chunk of clients, a device
on a network a cohort of one; the step cannot tell. `loss` and `descend` are where the time goes:
the engine's kernel does them in the fastest way that is exact for the task at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.batches import batches_of_clients
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.kernel import ClientSeeds, Descent, Kernel, Minimisation, Objective, StepRule
from coterie.core.layout import keeps_statistics
from coterie.core.rows import Rows, nan_to_inf
from coterie.core.samples import as_batch
from coterie.core.task import Task
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import dense, select_rows, to_device
from coterie.tensors.optimizers import BETAS, clip_norms


class BestModel(NamedTuple):
    """The model with the lowest loss on each client's data."""

    cluster: Tensor  # [m] which of the models it is, the first of equals
    model: Tensor  # [m, d] the model itself


class OptimizerState:
    """What optimisers carry from one call of `Cohort.minimise` to the next; empty before the first.

    `rows` [m, s] may be kept by the clients (`Cohort.keep`) to go on from in another round.
    """

    def __init__(self, rows: Tensor | None = None) -> None:
        self.rows = rows


class Memory(Protocol):
    """What clients keep for themselves between rounds; it never crosses the network."""

    def remembers(self, name: str, ids: Tensor) -> Tensor: ...
    def recall(self, name: str, ids: Tensor) -> Tensor: ...
    def keep(self, name: str, ids: Tensor, value: Tensor) -> None: ...
    def to_tensors(self) -> dict[str, Tensor]:
        """Everything that is kept, as a checkpoint holds it."""

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
        self._device = rows.y.device  # of all that a step sees
        self._ids = ids  # [m] on the CPU, for memory and randomness
        self.ids = ids if rows.y.is_cpu else ids.to(self._device)  # [m]
        self.task = task
        self.round = round
        self._rows = rows
        self._kernel = kernel
        self._memory = memory
        self._address = address  # (seed, ...): where the randomness of this step begins
        self._complete = complete  # whether the rows are all samples of these clients
        self._draws = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """The features [n_i, ...] and targets [n_i] of one client after another.

        Sequences come `Padded`, several inputs as `Inputs` (core/samples.py).
        """
        for x, y, size in zip(self._rows.x, self._rows.y, self._sizes, strict=True):
            yield as_batch(x[:size]), as_batch(y[:size])

    @property
    def size(self) -> Tensor:
        """How many samples each client has, [m]."""
        return self._rows.size

    @cached_property
    def _sizes(self) -> list[int]:
        sizes: list[int] = self._rows.size.tolist()
        return sizes

    @property
    def mask(self) -> Tensor:
        """Which rows count, [m, n]: clients with fewer than n samples are padded."""
        return self._rows.mask

    def generators(self, purpose: str) -> list[torch.Generator]:
        """A generator for each client, m of them, on the CPU (draw with device="cpu").

        What it draws depends on the step, the client and the purpose alone: a client draws the same
        in any company. Asked again for the same purpose in the same step, it begins anew.
        """
        return [seeds.generator(*self._address, i, purpose) for i in self._ids.tolist()]

    def loss(self, models: Tensor) -> Tensor:
        """The mean loss [m, k] of each client under models [k, d], or under its own [m, k, d].

        A model that has diverged has infinite loss, never NaN, so that nobody chooses it; so has
        every model where a client has no sample.
        """
        self._check_models("models", models, [["k"], [len(self), "k"]])
        here = self._with_data
        with torch.no_grad():
            if here is None:
                return nan_to_inf(self._kernel.losses(models, self._rows))
            losses = models.new_full((len(self), models.shape[-2]), torch.inf)
            if len(here):
                own = models if models.dim() == 2 else models[here]
                losses[here] = self.subset(here).loss(own)
            return losses

    def losses(self, models: Tensor) -> Tensor:
        """The loss [m, n, k] of every sample under models [k, d], or a client's own [m, k, d].

        Rows outside `mask` have loss 0; elsewhere a model that has diverged has infinite loss.
        """
        self._check_models("models", models, [["k"], [len(self), "k"]])
        here = self._with_data
        with torch.no_grad():
            if here is None:
                losses = nan_to_inf(self._kernel.sample_losses(models, self._rows))
                return torch.where(self.mask[:, :, None], losses, 0.0)
            losses = models.new_zeros(*self.mask.shape, models.shape[-2])
            if len(here):
                own = models if models.dim() == 2 else models[here]
                losses[here] = self.subset(here).losses(own)
            return losses

    def choose(self, models: Tensor) -> BestModel:
        """The model of [k, d] with the lowest mean loss on each client's data, as `loss` has it.

        To train the chosen model on from here costs less than to train `models[cluster]`.
        """
        self._check_models("models", models, [["k"]])
        here = self._with_data
        with torch.no_grad():
            if here is None:
                return BestModel(*self._kernel.choose(models, self._rows))
            cluster = torch.zeros_like(self.ids)
            if len(here):
                cluster[here] = self.subset(here).choose(models).cluster
            return BestModel(cluster, select_rows(models, cluster))

    def score(self, model: Tensor) -> Tensor:
        """The task's sums [m, s] for each client under its row of `model` [m, d].

        They are 0 for a client without samples.
        """
        here = self._with_data
        with torch.no_grad():
            if here is None:
                return self._kernel.score(model, self._rows)
            if len(here):
                found = self.subset(here).score(model[here])
                return found.new_zeros(len(self), found.shape[1]).index_copy(0, here, found)
            # A row of padding shows how many sums there are.
            one = next(rows for _, rows in self._rows.row_range(0, 1).client_blocks(1))
            found = self._kernel.score(model[:1], one._replace(size=torch.ones_like(one.size)))
            return torch.zeros_like(found).repeat(len(self), 1)

    def score_mixture(self, models: Tensor, shares: Tensor) -> Tensor:
        """The task's sums [m, s] where each client mixes models [k, d] in its shares [m, k]."""
        here = self._with_data
        with torch.no_grad():
            if here is None:
                return self._kernel.score_mixture(models, self._rows, shares)
            found = torch.zeros_like(self.score(models[:1].expand(len(self), -1)))
            if len(here):
                found[here] = self.subset(here).score_mixture(models, shares[here])
            return found

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
        largest norm that a gradient may have. The objective may carry weight_decay/2 |w|^2. A
        client without samples, or without weight, has gradient 0.

        Buffers have no gradient: w - lr g leaves the running statistics of batch normalisation
        where they are, of which a warning is given. With `statistics`, what they were less what
        they are after the batch stands in their place, and `Layout.step` makes a step of both;
        `descend` with steps=1 does the same. Without (False), they are meant to stay.
        """
        self._check_models("model", model, [[len(self)], [len(self), "k"]])
        layout, address = self.task.layout, self._next_address()
        if statistics is None and layout.trained_size < layout.size:
            warn_of_statistics(self.task)

        def work(some: Cohort, model: Tensor, weights: Tensor | None, _: Any) -> Tensor:
            found, width = some._gradient(model, weights, batch, address), layout.trained_size
            if width < layout.size and not statistics:
                found[:, width:] = 0
            if clip:
                found[:, :width] = clip_norms([found[:, :width]], clip, 1)[0]
            if weight_decay:
                found[:, :width] += weight_decay * model[:, :width]
            return found

        weights = self._sample_weights(weights, model)
        return self._for_each_model(work, torch.zeros_like, model, weights)

    def _gradient(
        self, model: Tensor, weights: Tensor | None, batch: int, address: tuple[int | str, ...]
    ) -> Tensor:
        """The gradient [m, d] of mean losses, maybe of some samples, as kernels give it."""
        once, rows = [1] * len(self), self._rows
        batches = batches_of_clients(self._sizes, batch, once, address, self._ids)
        if batches is not None:
            place = self._pad([rows[0] for rows in batches])
            rows = self._take(place)
            weights = None if weights is None else weights.gather(1, place.clamp_min(0))
        return self._kernel.gradient(model, rows, ClientSeeds(address, self._ids), weights)

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
        weight_decay/2 |w|^2.

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
        self._check_models("start", start, [[len(self)], [len(self), "k"]])
        address = self._next_address()
        rule = StepRule(lr, optimizer, momentum, clip).check()
        strength = None
        if anchor is not None:
            strength = torch.as_tensor(pull, dtype=start.dtype, device=self._device)
            strength = strength.expand(start.shape[-1])
        moves = self._part(part)

        def work(some: Cohort, start: Tensor, weights: Any, anchor: Any) -> Tensor:
            sizes, ids = some._sizes, some._ids
            counts = [steps or epochs * (-(-size // batch) if batch else 1) for size in sizes]
            descent = Descent(
                rule,
                counts,
                batches_of_clients(sizes, batch, counts, address, ids),
                ClientSeeds(address, ids),
                moves,
                strength,
                anchor,
                weight_decay,
                weights,
                ids if some._complete else None,
            )
            return some._kernel.descend(start, some._rows, descent)

        weights = self._sample_weights(weights, start)
        return self._for_each_model(work, dense, start, weights, anchor)

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
        self._check_models("start", start, [[len(self)]])
        address, here = self._next_address(), self._with_data
        rule = StepRule(lr, optimizer, momentum, clip, betas).check()
        moves = self._part(part)
        some = self if here is None else self.subset(here)
        if not len(some):
            return torch.clone(dense(start))
        before = None if state is None else state.rows
        counts = [steps] * len(some)
        work = Minimisation(
            objective,
            rule,
            weight_decay,
            moves,
            batches_of_clients(some._sizes, batch, counts, address, some._ids),
            counts,
            ClientSeeds(address, some._ids),
            [seeds.generator(*address, i, "objective") for i in some._ids.tolist()],
            before if before is None or here is None else before[here],
        )
        models: Tensor = dense(start)
        end, after = self._kernel.minimise(
            models if here is None else models[here], some._rows, work
        )
        if here is not None:
            end = models.index_copy(0, here, end)
            after = after.new_zeros(len(self), after.shape[1]).index_copy(0, here, after)
        if state is not None:
            state.rows = after
        return end

    def _check_models(self, what: str, models: Tensor, leading: list[list[int | str]]) -> None:
        """Refuse models that are not [..., d] with one of the leading shapes."""
        size, shape = self.task.layout.size, list(models.shape)
        for lead in leading:
            fits = zip([*lead, size], shape, strict=False)
            if len(shape) == len(lead) + 1 and all(a in ("k", b) for a, b in fits):
                return
        shapes = " or ".join(f"[{', '.join(map(str, lead))}, {size}]" for lead in leading)
        raise CoterieError(
            f"`{what}` must be {shapes}, for a model has {size} numbers, got {shape}"
        )

    @cached_property
    def _with_data(self) -> Tensor | None:
        """The places [a] of the clients that have samples; None: all have."""
        return None if all(self._sizes) else torch.nonzero(self._rows.size).flatten()

    def _part(self, part: Tensor | str | None) -> Tensor | None:
        """The coordinates [d] of a part that may be given by its name."""
        return self.task.layout.part(part).to(self._device) if isinstance(part, str) else part

    def _sample_weights(self, weights: Tensor | None, models: Tensor) -> Tensor | None:
        """Weights [m, n] or [m, n, k] in the type of models, 0 for padding."""
        if weights is None:
            return None
        plain, each = tuple(self.mask.shape), (*self.mask.shape, *models.shape[1:-1])
        if tuple(weights.shape) not in (plain, each):
            shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys((plain, each)))
            raise CoterieError(
                f"the weights of samples must be {shapes}, got {list(weights.shape)}"
            )
        mask = self.mask.view(*plain, *(1 for _ in weights.shape[2:]))
        return torch.where(mask, weights.to(self._device, models.dtype), 0.0)

    def _for_each_model(
        self,
        work: Callable[[Cohort, Tensor, Tensor | None, Tensor | None], Tensor],
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
                found.append(self._for_each_model(work, still, model, own, near))
            return torch.stack(found, 1)
        learn = self._with_data
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

    def split(self, share: float) -> tuple[Cohort, Cohort]:
        """The same clients with `share` of their samples, and with the rest, which is held out.

        A client's two parts are the same whenever it is asked, whatever its id, and both have a
        sample; the only sample of a client is in both.
        """
        kept, held = [], []
        for size in self._sizes:
            generator = seeds.generator(self._address[0], "hold", size)
            order = torch.randperm(size, generator=generator, device="cpu")
            cut = max(1, min(int(share * size), size - 1))
            kept.append(order[:cut])
            held.append(order[min(cut, size - 1) :])
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
        chosen: dict[int, Tensor] = {}
        for size in set(self._sizes):
            generator = seeds.generator(self._address[0], "parts", size)
            order = torch.randperm(size, generator=generator, device="cpu")
            chosen[size] = order.tensor_split(of)[which]
        return self._with_samples([chosen[size] for size in self._sizes], f"part {which}")

    def subset(self, places: Tensor) -> Cohort:
        """The clients at `places` [a] among these; their randomness begins anew."""
        rows = Rows(*(part[places] for part in self._rows))
        return self._cohort(self._ids[to_device(places, CPU)], rows, self._address, self._complete)

    def among(self, chosen: Tensor) -> Cohort:
        """The same clients with those of their samples that `chosen` [m, n] names.

        A client may be left without any: it then has infinite loss, scores 0 and stands still.
        """
        rows = zip(chosen, self._sizes, strict=True)
        chosen_rows = [torch.nonzero(row[:size]).flatten() for row, size in rows]
        return self._with_samples(chosen_rows, "among")

    def by_label(self, label: Tensor, k: int) -> Cohort:
        """m k clients in the place of m: the samples of each with label 0, then those with 1, ...

        `label` [m, n] is from 0 to k - 1. With several labels for each sample, [m, n, r], they are
        m r k clients: for every client, those of its first label come first. A client may be left
        without samples of a label, and then stands still there. What is drawn differs from label
        to label. They remember nothing.
        """
        label = label[:, :, None] if label.dim() == 2 else label
        label = label.masked_fill(~self.mask[:, :, None], k).transpose(1, 2)  # [m, r, n]
        order = label.argsort(dim=2, stable=True)  # rows by label
        size = (label[..., None] == torch.arange(k, device=self._device)).sum(2)  # [m, r, k]
        place = torch.arange(max(1, int(size.max())), device=self._device)  # [b]
        rows = (size.cumsum(2) - size)[..., None] + place  # [m, r, k, b] places in the order
        rows = order.gather(2, rows.clamp_max(order.shape[2] - 1).flatten(2)).flatten(1)
        taken = self._rows.take(rows)
        x, y = (part.reshape(-1, len(place), *part.shape[2:]) for part in taken[:2])
        sets = size[0].numel()
        ids = (self._ids[:, None] * sets + torch.arange(sets, device="cpu")).flatten()
        return self._cohort(ids, Rows(x, y, size.flatten()), (*self._address, "by label"), False)

    def _with_samples(self, chosen: list[Tensor], purpose: str) -> Cohort:
        """The same clients with the rows `chosen[i]` of each client i only."""
        return self._cohort(
            self._ids, self._take(self._pad(chosen)), (*self._address, purpose), False
        )

    def _cohort(
        self, ids: Tensor, rows: Rows, address: tuple[int | str, ...], complete: bool
    ) -> Cohort:
        """A cohort of the same round on other rows."""
        return Cohort(
            ids,
            rows,
            self.task,
            self._kernel,
            self._memory,
            round=self.round,
            address=address,
            complete=complete,
        )

    def _pad(self, chosen: list[Tensor]) -> Tensor:
        """Rows `chosen[i]` of each client i side by side, [m, b] with b at least 1; -1 is none."""
        rows = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1)
        rows = rows if rows.shape[1] else rows.new_full((len(rows), 1), -1)
        return rows.to(self._device)

    def _take(self, place: Tensor) -> Rows:
        """The rows `place` [m, b] of each client; a -1, always behind the others, is none."""
        return self._rows.take(place.clamp_min(0))._replace(size=(place >= 0).sum(1))

    def _next_address(self) -> tuple[int | str, ...]:
        """Where the randomness of the next call begins."""
        self._draws += 1
        return (*self._address, self._draws)

    def remembers(self, name: str) -> Tensor:
        """Which clients kept something under `name`, [m]."""
        known: Tensor = to_device(self._memory.remembers(name, self._ids), self._device)
        return known

    def recall(self, name: str, default: Tensor | None = None) -> Tensor:
        """What each client kept under `name`, [m, ...]; its row of `default` if it kept nothing."""
        known = self._memory.remembers(name, self._ids)
        if default is None:
            if not bool(known.all()):
                raise CoterieError(
                    f"`recall` must be given a default for clients who never kept {name}, as is "
                    f"client {int(self._ids[~known][0])}"
                )
        elif not bool(known.any()):
            return default
        rows: Tensor = to_device(self._memory.recall(name, self._ids), self._device)
        if default is None:
            return rows
        known = to_device(known, self._device).view(-1, *(1 for _ in default.shape[1:]))
        return torch.where(known, rows, default)

    def keep(self, name: str, value: Tensor) -> None:
        """Let each client keep its row of `value` [m, ...] until a later round."""
        self._memory.keep(name, self._ids, to_device(value, CPU))


def warn_of_statistics(task: Task) -> None:
    """Warn that a gradient leaves running statistics alone, if the network keeps any."""
    if keeps_statistics(task.module):
        warnings.warn(
            "a gradient leaves the running statistics of batch normalisation where they are: ask "
            "for `statistics=True` and make steps with `Layout.step`, or for False if they are "
            "meant to stay",
            CoterieWarning,
            stacklevel=3,
        )
