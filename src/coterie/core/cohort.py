"""What a client step sees: the data of some clients side by side, and the work it may ask for.

Every tensor has a leading client axis `m`. The simulator hands a step a chunk of clients, a device
on a network a cohort of one; the step cannot tell. `loss` and `descend` are where the time goes:
the engine's kernel does them in the fastest way that is exact for the task at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.samples import as_batch
from coterie.core.task import Task
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import to_device


class Rows(NamedTuple):
    """Samples of a cohort, padded to the longest client; padding never changes a result."""

    x: Any  # [m, n, ...]; `Indexed` (core/samples.py) where a sample is more than one tensor
    y: Any  # [m, n], with further axes where a target has some; `Indexed` for sequences of targets
    size: Tensor  # [m] rows that count; those behind them are padding

    @property
    def mask(self) -> Tensor:
        """Which rows count, [m, n]."""
        return torch.arange(self.y.shape[1], device=self.size.device) < self.size[:, None]

    def weights(self, dtype: torch.dtype, count: Tensor | None = None) -> Tensor:
        """What each row counts in its client's mean, [m, n].

        The mean is over `count` [m] rows if these are only some of them.
        """
        return self.mask.to(dtype) / (self.size if count is None else count)[:, None]

    def take(self, rows: Tensor) -> Rows:
        """The rows numbered `rows` [m, b] of each client; all of them count."""
        client = torch.arange(len(rows), device=rows.device)[:, None]
        size = torch.full_like(self.size, rows.shape[1])
        return Rows(self.x[client, rows], self.y[client, rows], size)

    def row_range(self, begin: int, end: int) -> Rows:
        """The rows from `begin` up to `end` of each client, without a copy."""
        rows = slice(begin, end)
        return Rows(self.x[:, rows], self.y[:, rows], self.size.clamp(begin, end) - begin)

    def client_blocks(self, size: int) -> Iterator[tuple[slice, Rows]]:
        """Blocks of `size` clients: which clients they are, and their rows."""
        for begin in range(0, len(self.y), size):
            clients = slice(begin, begin + size)
            yield clients, Rows(*(part[clients] for part in self))


class Seeds(Protocol):
    """A seed for each client of a cohort."""

    def __getitem__(self, i: int, /) -> int: ...


@dataclass(frozen=True)
class ClientSeeds:
    """Seeds that are derived only when a network that draws asks for them; most never do."""

    address: tuple[int | str, ...]
    ids: Tensor  # [m]

    def __getitem__(self, i: int) -> int:
        return seeds.derive(*self.address, int(self.ids[i]), "noise")


class Descent(NamedTuple):
    """One call of `Cohort.descend`, as a kernel needs it."""

    lr: float  # step size
    steps: list[int]  # [m] gradient steps of each client
    # m of [steps, b], on the CPU: the rows of each step, -1 for none; None: all
    batches: list[Tensor] | None
    seeds: Seeds  # [m] for networks that draw, as dropout does
    part: Tensor | None  # [d] the coordinates that move; None: all
    pull: Tensor | None  # [d] strength of the pull towards the anchor; None: no pull
    anchor: Tensor | None  # [m, d]
    weight_decay: float  # strength of the pull towards zero
    # [m] whose samples the rows are, if they are all that these clients have; None: only some
    ids: Tensor | None = None

    def slice_clients(self, clients: slice) -> Descent:
        """The same for some of the clients, for networks that do not draw."""
        return self._replace(
            steps=self.steps[clients],
            batches=None if self.batches is None else self.batches[clients],
            anchor=None if self.anchor is None else self.anchor[clients],
            ids=None if self.ids is None else self.ids[clients],
        )


class BestModel(NamedTuple):
    """The model with the lowest loss on each client's data."""

    cluster: Tensor  # [m] which of the models it is, the first of equals
    model: Tensor  # [m, d] the model itself


class Kernel(Protocol):
    """How the work on a cohort is done. All kernels agree to rounding."""

    def losses(self, models: Tensor, rows: Rows) -> Tensor:
        """Mean losses [m, k] of models [k, d] shared by all clients, or [m, k, d] of their own."""

    def choose(self, models: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Which of models [k, d] has each client's lowest mean loss [m], and that model [m, d]."""

    def gradient(self, models: Tensor, rows: Rows, seeds: Seeds) -> Tensor:
        """Gradients [m, d] of each client's mean loss at its own model [m, d]."""

    def descend(self, start: Tensor, rows: Rows, descent: Descent) -> Tensor:
        """Each client's model [m, d] after gradient descent from its row of `start`."""

    def score(self, models: Tensor, rows: Rows) -> Tensor:
        """The task's sums [m, s] for each client under its own model [m, d]."""


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

    def loss(self, models: Tensor) -> Tensor:
        """The mean loss [m, k] of each client under models [k, d], or under its own [m, k, d].

        A model that has diverged has infinite loss, never NaN, so that nobody chooses it.
        """
        with torch.no_grad():
            return nan_to_inf(self._kernel.losses(models, self._rows))

    def choose(self, models: Tensor) -> BestModel:
        """The model of [k, d] with the lowest mean loss on each client's data, as `loss` has it.

        To train the chosen model on from here costs less than to train `models[cluster]`.
        """
        with torch.no_grad():
            return BestModel(*self._kernel.choose(models, self._rows))

    def gradient(self, model: Tensor, *, batch: int = 0, weight_decay: float = 0.0) -> Tensor:
        """The gradient [m, d] of each client's mean loss at its row of `model` [m, d].

        `batch` samples of each client make a stochastic gradient; 0: all of them. The objective may
        carry weight_decay/2 |w|^2. Buffers have no gradient and stay as they are.
        """
        address = self._next_address()
        rows, sizes = self._rows, self._sizes
        if batch and any(batch < size for size in sizes):
            rows = self._take(
                [
                    shuffled_batches(size, batch, 1, seeds.generator(*address, i, "batches"))[0]
                    for size, i in zip(sizes, self._ids.tolist(), strict=True)
                ]
            )
        gradient = self._kernel.gradient(model, rows, ClientSeeds(address, self._ids))
        if weight_decay:
            width = self.task.layout.trained_size
            gradient[:, :width] += weight_decay * model[:, :width]
        return gradient

    def score(self, model: Tensor) -> Tensor:
        """The task's sums [m, s] for each client under its row of `model` [m, d]."""
        with torch.no_grad():
            return self._kernel.score(model, self._rows)

    def descend(
        self,
        start: Tensor,
        *,
        lr: float,
        steps: int = 0,
        epochs: int = 0,
        batch: int = 0,
        part: Tensor | None = None,
        pull: float | Tensor = 0.0,
        anchor: Tensor | None = None,
        weight_decay: float = 0.0,
    ) -> Tensor:
        """Gradient descent of each client on its own mean loss, from its row of `start` [m, d].

        `batch` samples make one gradient (0: all of them), drawn without replacement, the last
        batch of a pass being the smaller one. Either `steps` gradient steps are made, through as
        many passes as that takes, or `epochs` whole passes. `part` [d] names the coordinates that
        move, as `Layout.part` does. The objective may carry pull/2 |w - anchor|^2, with one
        strength for all coordinates or one for each [d], and weight_decay/2 |w|^2.
        """
        assert (steps > 0) != (epochs > 0), "give either steps or epochs"
        address = self._next_address()
        sizes = self._sizes
        steps_per_pass = [-(-size // batch) if batch else 1 for size in sizes]
        counts = [steps or epochs * each for each in steps_per_pass]
        batches = None
        if batch and any(batch < size for size in sizes):
            batches = [
                shuffled_batches(size, batch, count, seeds.generator(*address, i, "batches"))
                for size, count, i in zip(sizes, counts, self._ids.tolist(), strict=True)
            ]
        strength = None
        if anchor is not None:
            strength = torch.as_tensor(pull, dtype=start.dtype, device=self._device)
            strength = strength.expand(start.shape[1])
        noise = ClientSeeds(address, self._ids)
        ids = self._ids if self._complete else None
        descent = Descent(lr, counts, batches, noise, part, strength, anchor, weight_decay, ids)
        return self._kernel.descend(start, self._rows, descent)

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

    def subset(self, places: Tensor) -> Cohort:
        """The clients at `places` [a] among these; their randomness begins anew."""
        rows = Rows(*(part[places] for part in self._rows))
        return self._cohort(self._ids[to_device(places, CPU)], rows, self._address, self._complete)

    def among(self, chosen: Tensor) -> Cohort:
        """The same clients with those of their samples that `chosen` [m, n] names.

        A client may be left without any; it scores 0 and has a loss of infinity there.
        """
        rows = zip(chosen, self._sizes, strict=True)
        chosen_rows = [torch.nonzero(row[:size]).flatten() for row, size in rows]
        return self._with_samples(chosen_rows, "among")

    def _with_samples(self, chosen: list[Tensor], purpose: str) -> Cohort:
        """The same clients with the rows `chosen[i]` of each client i only."""
        return self._cohort(self._ids, self._take(chosen), (*self._address, purpose), False)

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

    def _take(self, chosen: list[Tensor]) -> Rows:
        """The rows `chosen[i]` of each client i; those that are -1 do not count."""
        rows = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1)  # [m, b]
        rows = rows.to(self._device)
        # A -1 always stands behind the rows that count.
        return self._rows.take(rows.clamp_min(0))._replace(size=(rows >= 0).sum(1))

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
            assert bool(known.all()), f"a client recalls {name} but never kept it"
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


def nan_to_inf(losses: Tensor) -> Tensor:
    """Losses with infinity for those that are not a number."""
    return losses.nan_to_num(nan=torch.inf, posinf=torch.inf)


def shuffled_batches(size: int, batch: int, steps: int, generator: torch.Generator) -> Tensor:
    """The rows of `steps` mini-batches, [steps, batch], each pass a new permutation; -1 is none.

    >>> shuffled_batches(3, 2, 4, torch.Generator().manual_seed(0)).sort().values.shape
    torch.Size([4, 2])
    """
    per_pass = -(-size // batch)
    rows = torch.full((-(-steps // per_pass), per_pass * batch), -1, device="cpu")
    for one_pass in rows:
        one_pass[:size] = torch.randperm(size, generator=generator, device="cpu")
    return rows.view(-1, batch)[:steps]
