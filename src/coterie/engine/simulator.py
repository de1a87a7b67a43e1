"""The simulator: clients of a federation behind the seam, a chunk at a time.

Clients of like size are put in one chunk and padded to the longest of them; a chunk of 1 is the
reference, and every other size gives the same result to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from coterie.core.clients import Call, Clients, Each, Fold
from coterie.core.cohort import Cohort, Rows
from coterie.core.errors import CoterieError
from coterie.core.population import RoundClients
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.engine.devices import find_device
from coterie.engine.kernels import kernel_for
from coterie.engine.malloc import keep_freed, tidily
from coterie.tensors.devices import CPU, default_device, free_bytes, working_bytes
from coterie.tensors.lazy import to_device

# What the models of a chunk may occupy, if they are formed.
CHUNK_BYTES = 64 * 2**20
LARGEST_CHUNK = 256
FAR_LARGEST_CHUNK = 1024  # on another device than the CPU
# On a machine of many cores a chunk may be as large as this for each of its threads, so that none
# is idle. It was not measured.
THREAD_BYTES = 8 * 2**20
THREAD_CLIENTS = 16
# Samples are kept on another device if they take at most this share of its free memory.
FAR_SHARE = 0.5
# Padding may take this share of a chunk's own samples, or as many numbers as this.
PADDING_SHARE = 0.25
PADDING_NUMBERS = 2**16


class ClientMemory:
    """What clients keep between rounds: for each name one row per client."""

    def __init__(self, population: int) -> None:
        self.population = population
        self.rows: dict[str, Tensor] = {}  # name -> [m, ...]
        self.known: dict[str, Tensor] = {}  # name -> [m] who kept something

    def remembers(self, name: str, ids: Tensor) -> Tensor:
        """Which of `ids` kept something; unseen clients, numbered behind the others, did not."""
        seen = ids < self.population
        if name not in self.known:
            return torch.zeros_like(seen)
        return self.known[name][torch.where(seen, ids, 0)] & seen

    def recall(self, name: str, ids: Tensor) -> Tensor:
        """The rows of `ids`; those of clients that kept nothing mean nothing."""
        return self.rows[name][ids.clamp_max(self.population - 1)]

    def keep(self, name: str, ids: Tensor, value: Tensor) -> None:
        if name not in self.rows:
            self.rows[name] = value.new_zeros(self.population, *value.shape[1:])
            self.known[name] = torch.zeros(self.population, dtype=torch.bool, device=CPU)
        self.rows[name][ids] = value
        self.known[name][ids] = True


class OwnMemory(ClientMemory):
    """The memory of some clients of a larger federation; `place` says which row each has."""

    def __init__(self, count: int, place: Callable[[Tensor], Tensor]) -> None:
        super().__init__(count)
        self.place = place

    def remembers(self, name: str, ids: Tensor) -> Tensor:
        return super().remembers(name, self.place(ids))

    def recall(self, name: str, ids: Tensor) -> Tensor:
        return super().recall(name, self.place(ids))

    def keep(self, name: str, ids: Tensor, value: Tensor) -> None:
        super().keep(name, self.place(ids), value)


class Simulator:
    """All clients of one part of a federation, on this machine.

    `first` is the id of the first client: unseen clients are numbered after those that train.
    `device` is where client steps run, as in cuda; what goes to them and comes from them is on the
    CPU.
    """

    # What the padded samples of a chunk may occupy, unless a single client already has more.
    chunk_data_bytes = 64 * 2**20
    largest_chunk = LARGEST_CHUNK

    def __init__(
        self,
        samples: Samples,
        task: Task,
        *,
        seed: int = 0,
        chunk: int = 0,
        first: int = 0,
        population: int | None = None,
        memory: ClientMemory | None = None,
        device: str | torch.device = CPU,
    ) -> None:
        keep_freed()
        self.device = find_device(device)
        self.samples = samples
        self._placed: Samples | None = None  # on the device, if they fit
        self.task = task
        self.seed = seed
        self.first = first
        self.population = len(samples) if population is None else population
        self.memory = memory or ClientMemory(self.population)
        self.kernel = kernel_for(task, samples.x.dim() - 1, self.device)
        self.chunk = chunk or self.usual_chunk()

    def beside(self, samples: Samples, first: int = 0) -> Simulator:
        """Other samples for the same task, such as those that models are tested on.

        They are those of the same clients, or of clients numbered from `first` on.
        """
        return Simulator(samples, first=first, **self._common())

    def _common(self) -> dict[str, Any]:
        """What simulators of several samples in one run have in common."""
        return {
            "task": self.task,
            "seed": self.seed,
            "chunk": self.chunk,
            "population": self.population,
            "memory": self.memory,
            "device": self.device,
        }

    @property
    def ids(self) -> Tensor:
        """The ids of all clients."""
        return torch.arange(self.first, self.first + len(self.samples))

    def usual_chunk(self) -> int:
        """How many clients are simulated at a time."""
        largest = FAR_LARGEST_CHUNK
        if self.device == CPU:
            largest = max(self.largest_chunk, THREAD_CLIENTS * torch.get_num_threads())
        bytes_per_model = self.task.layout.size * self.task.layout.dtype.itemsize
        return max(1, min(largest, self._room(CHUNK_BYTES) // bytes_per_model))

    def _room(self, usual: int) -> int:
        """What a chunk may occupy: as much as usual, or more where there are many threads."""
        return working_bytes(self.device, max(usual, THREAD_BYTES * torch.get_num_threads()))

    def notes(self) -> dict[str, Any]:
        """What else there is to say of the round that was; of a simulated one nothing."""
        return {}

    def checkpointed(self, rounds: int) -> None:
        """A checkpoint holds so many rounds; nobody here needs to know."""

    def client_memory(self) -> dict[str, Tensor]:
        """What clients keep between rounds, by names that `restore_client_memory` takes."""
        kept = {f"memory.{name}": rows for name, rows in self.memory.rows.items()}
        return kept | {f"known.{name}": known for name, known in self.memory.known.items()}

    def restore_client_memory(self, tensors: dict[str, Tensor]) -> None:
        """Give clients back what a checkpoint holds of their memory; other tensors are ignored."""
        for name, tensor in tensors.items():
            owner, _, rest = name.partition(".")
            if owner in ("memory", "known"):
                (self.memory.rows if owner == "memory" else self.memory.known)[rest] = tensor

    @property
    def sizes(self) -> Tensor:
        """How many samples each client has, [m]."""
        return self.samples.sizes

    def at(self, *address: int | str, round: int = 0, ids: Tensor | None = None) -> Clients:
        """The clients `ids` (all of them if not given) in a round, behind the seam.

        `address` is where their randomness begins, after the seed.
        """
        ids = self.ids if ids is None else ids
        return RoundClients(self, round, ids, (self.seed, *address))

    def chunks(self, ids: Tensor) -> Iterator[Tensor]:
        """`ids` in chunks of clients of like size; one that is very large has a chunk to itself."""
        for places in self.places(self.samples.sizes[self.rows_of(ids)]):
            yield ids[places]

    def rows_of(self, ids: Tensor) -> Tensor:
        """Where clients `ids` lie among the samples."""
        return ids - self.first

    def places(self, sizes: Tensor) -> Iterator[Tensor]:
        """The places of clients with so many samples in their list [m], chunk by chunk."""
        sizes, order = sizes.sort(stable=True)
        width = self.samples.x[0].numel()
        most = self._room(self.chunk_data_bytes)
        begin = held = 0  # where the chunk begins, and the samples of its clients
        for place, size in enumerate(sizes.tolist()):
            count, wide = place - begin, (place - begin + 1) * size
            too_wide = wide * width * self.task.layout.dtype.itemsize > most
            padding = wide - held - size
            wasteful = padding > max(PADDING_SHARE * (held + size), PADDING_NUMBERS / width)
            if count and (count == self.chunk or too_wide or wasteful):
                yield order[begin:place]
                begin, held = place, 0
            held += size
        if len(order):
            yield order[begin:]

    def cohort(self, ids: Tensor, round: int, address: tuple[int | str, ...]) -> Cohort:
        """The clients `ids` as a client step sees them."""
        rows = self.rows(ids)
        return Cohort(ids, rows, self.task, self.kernel, self.memory, round=round, address=address)

    def rows(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` on the device, in the types that the task takes."""
        here = self.device == CPU
        rows = self.samples.rows(self.rows_of(ids)) if here else self._near(ids)
        return Rows(self.task.inputs(rows.x), self.task.targets(rows.y), rows.size)

    def _near(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` on a device that is not the CPU."""
        if self._placed is None:
            self._placed = placed(self.samples, self.device)
        return Rows(
            *(to_device(part, self.device) for part in self._placed.rows(self.rows_of(ids)))
        )

    def there(self, work: Callable[..., Any], *arguments: Any, **message: Any) -> Any:
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
                f"the memory of {self.device} is too small for {self.chunk} clients at a time; "
                "a smaller `chunk` may help"
            ) from error

    def folded(self, call: Call, fold: Fold[Any]) -> Any:
        """A client step, chunk by chunk, what the clients send being folded; unfinished."""
        total = fold.start()
        message = {name: self._sent(value) for name, value in call.message.items()}
        # Where a fold does not say that it works on any device, it is the server's, on the CPU.
        to = self.device if getattr(fold, "anywhere", False) else CPU
        for chunk in tidily(self.chunks(call.ids)):
            cohort = self.cohort(chunk, call.round, call.address)
            download = {n: v.of(chunk) if isinstance(v, Each) else v for n, v in message.items()}
            upload = self.there(call.step, cohort, **download)
            if self.device != CPU:
                upload = type(upload)(*(to_device(value, to) for value in upload))
            total = fold.add(total, chunk, upload)
        return total

    def _sent(self, value: Any) -> Any:
        """What every chunk of clients is sent, brought to the device once."""
        if isinstance(value, Each):
            shared = value.index is not None and self.device != CPU
            return replace(value, rows=to_device(value.rows, self.device)) if shared else value
        return to_device(value, self.device)

    def answered(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Who answers a client step, and the fold of what they send, unfinished; here all do."""
        return call.ids, self.folded(call, fold)


# What lies on a device is shared by all simulators of the same samples, as those of several copies
# of a run are. Whoever holds it holds the samples as well, so that their number is their own.
PLACED: WeakValueDictionary[tuple[int, str], Samples] = WeakValueDictionary()


def placed(samples: Samples, device: torch.device) -> Samples:
    """The samples on a device; as they are if its memory is too small, to be brought by chunks."""
    key = id(samples), str(device)
    found = PLACED.get(key)
    if found is not None:
        return found
    if samples.x.nbytes + samples.y.nbytes > FAR_SHARE * free_bytes(device):
        return samples
    found = Samples(samples.x.to(device), samples.y.to(device), samples.offsets)
    PLACED[key] = found
    return found
