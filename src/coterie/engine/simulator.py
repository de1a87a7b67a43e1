"""The simulator: clients of a federation behind the seam, a chunk at a time.

A chunk of one client is the reference, and every other size gives the same result to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from coterie.core.clients import Call, Each, Fold, Replies
from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError
from coterie.core.kernel import Kernel
from coterie.core.population import Purpose, RoundClients
from coterie.core.rows import Rows
from coterie.core.samples import Indexed
from coterie.core.step_checks import check_upload
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.engine.chunks import ChunkCache, Chunking
from coterie.engine.client_memory import ClientMemory
from coterie.engine.devices import find_device
from coterie.engine.kernels import kernel_for
from coterie.engine.malloc import trim_between
from coterie.tensors.devices import CPU, default_device, free_bytes
from coterie.tensors.lazy import to_device
from coterie.tensors.threads import adapt_threads

# Samples are kept on another device if they take at most this share of its free memory.
DEVICE_SHARE = 0.5


class Simulator:
    """All clients of one part of a federation, on this machine.

    `first` is the id of the first client: unseen clients are numbered after those that train.
    `locate` says where clients lie among the samples, by their ids, if these are not numbered from
    `first` on. `device` is where client steps run, as in cuda; what goes to them and comes from
    them is on the CPU. `kernel`, `chunking` and `cache` are for copies of a run in lock-step.
    """

    def __init__(
        self,
        samples: Samples,
        task: Task,
        *,
        seed: int = 0,
        chunk: int = 0,
        first: int = 0,
        population: int | None = None,
        memory: Memory | None = None,
        device: str | torch.device = CPU,
        locate: Callable[[Tensor], Tensor] | None = None,
        kernel: Kernel | None = None,
        chunking: Chunking | None = None,
        cache: ChunkCache | None = None,
    ) -> None:
        self.device = find_device(device)
        self.samples = samples
        self._samples_on_device: Samples | None = None  # if they fit
        self.task = task
        self.seed = seed
        self.first = first
        self.locate = locate or (lambda ids: ids - first)
        self.population = len(samples) if population is None else population
        self.memory = memory or ClientMemory(self.population)
        self.kernel = kernel or kernel_for(task, samples.tensor_axes, self.device)
        self.chunking = chunking or Chunking(
            task, samples.sample_numbers, chunk, device=self.device
        )
        self.cache = cache

    def with_samples(self, samples: Samples, first: int = 0) -> Simulator:
        """Other samples for the same task, such as those that models are tested on.

        They are those of the same clients, or of clients numbered from `first` on.
        """
        return Simulator(
            samples,
            self.task,
            seed=self.seed,
            first=first,
            population=self.population,
            memory=self.memory,
            device=self.device,
            chunking=self.chunking,
        )

    def with_task(self, task: Task) -> Simulator:
        """The same samples for another task over the same network, to score models at it."""
        return Simulator(
            self.samples,
            task,
            seed=self.seed,
            first=self.first,
            population=self.population,
            memory=self.memory,
            device=self.device,
            locate=self.locate,
            chunking=self.chunking,
        )

    @property
    def ids(self) -> Tensor:
        """The ids of all clients."""
        return torch.arange(self.first, self.first + len(self.samples))

    @property
    def sizes(self) -> Tensor:
        """How many samples each client has, [m]."""
        return self.samples.sizes

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> RoundClients:
        """The clients `ids` (all of them if not given) in a round, behind the seam.

        Their randomness begins with the seed, the purpose and `address`.
        """
        ids = self.ids if ids is None else ids
        return RoundClients(self, round, ids, (self.seed, purpose, *address), purpose)

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: whose replies arrived, and the fold of these, unfinished.

        The step runs chunk by chunk.
        """
        message = {name: self._download(value) for name, value in call.message.items()}
        # Where a fold does not say that it works on any device, it is the server's, on the CPU.
        to = self.device if getattr(fold, "on_any_device", False) else CPU
        replies = Replies(call, fold, call.message if to == CPU else message)
        for chunk in trim_between(self.chunks(call.ids)):
            cohort = self.cohort(chunk, call.round, call.address)
            download = {
                n: v.rows_for(chunk) if isinstance(v, Each) else v for n, v in message.items()
            }
            upload = self.on_device(call.step, cohort, **download)
            check_upload(call.step, chunk, upload)
            if self.device != CPU:
                upload = type(upload)(*(to_device(value, to) for value in upload))
            replies.add(chunk, upload)
        return replies.ids, replies.total

    def _download(self, value: Any) -> Any:
        """What every chunk of clients is sent, brought to the device once."""
        if isinstance(value, Each):
            shared = value.index is not None and self.device != CPU
            return replace(value, rows=to_device(value.rows, self.device)) if shared else value
        return to_device(value, self.device)

    def chunks(self, ids: Tensor) -> Iterator[Tensor]:
        """`ids` in chunks of clients of like size."""
        return self._cut(ids) if self.cache is None else self.cache.chunks(ids, self._cut)

    def _cut(self, ids: Tensor) -> Iterator[Tensor]:
        for places in self.chunking.cut(self.samples.sizes[self.locate(ids)]):
            yield ids[places]

    def cohort(self, ids: Tensor, round: int, address: tuple[int | str, ...]) -> Cohort:
        """The clients `ids` as a client step sees them."""
        rows = self._load(ids) if self.cache is None else self.cache.rows(ids, self._load)
        adapt_threads(rows.y.numel() * self.task.layout.size)
        return Cohort(ids, rows, self.task, self.kernel, self.memory, round=round, address=address)

    def _load(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` on the device, in the types that the task takes."""
        here = self.device == CPU
        rows = self.samples.rows(self.locate(ids)) if here else self._load_on_device(ids)
        return Rows(self.task.inputs(rows.x), self.task.targets(rows.y), rows.size)

    def _load_on_device(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` on a device that is not the CPU."""
        if self._samples_on_device is None:
            self._samples_on_device = samples_on_device(self.samples, self.device)
        rows = self._samples_on_device.rows(self.locate(ids))
        x, y = (
            part.to(self.device) if isinstance(part, Indexed) else to_device(part, self.device)
            for part in (rows.x, rows.y)
        )
        return Rows(x, y, to_device(rows.size, self.device))

    def on_device(self, work: Callable[..., Any], *arguments: Any, **message: Any) -> Any:
        """What `work` gives, done on the device: tensors that it is given are brought there."""
        if self.device == CPU:
            return work(*arguments, **message)
        if isinstance(work, partial):  # as steps are that a serving has with what they are sent
            message = {**work.keywords, **message}
            work = work.func
        try:
            with default_device(self.device):
                return work(
                    *(to_device(value, self.device) for value in arguments),
                    **{name: to_device(value, self.device) for name, value in message.items()},
                )
        except torch.OutOfMemoryError as error:
            raise CoterieError(
                f"the memory of {self.device} is too small for {self.chunking.clients} clients at "
                "a time; a smaller `chunk` may help"
            ) from error

    def notes(self) -> dict[str, Any]:
        """What else there is to say of the round that was; of a simulated one nothing."""
        return {}

    def on_checkpoint(self, rounds: int) -> None:
        """A checkpoint holds so many rounds; nobody here needs to know."""

    def on_best(self, rounds: int) -> None:
        """The best state so far is that after so many rounds; nobody here needs to know."""

    def go_to(self, rounds: int) -> None:
        """Clients are as they were after so many rounds; nobody here needs to know."""


# What lies on a device is shared by all simulators of the same samples, as those of several copies
# of a run are. Whoever holds it holds the samples as well, so that their number is their own.
ON_DEVICE: WeakValueDictionary[tuple[int, str], Samples] = WeakValueDictionary()


def samples_on_device(samples: Samples, device: torch.device) -> Samples:
    """The samples on a device; as they are if its memory is too small, to be brought by chunks."""
    key = id(samples), str(device)
    found = ON_DEVICE.get(key)
    if found is not None:
        return found
    if samples.x.nbytes + samples.y.nbytes > DEVICE_SHARE * free_bytes(device):
        return samples
    found = Samples(samples.x.to(device), samples.y.to(device), samples.offsets)
    ON_DEVICE[key] = found
    return found
