"""Chunks: how clients are put together to be worked on at once.

Clients of like size share a chunk and are padded to the longest of them. Whoever folds replies in
the order of these chunks, as the server of a network does, gets the simulator's sums bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coterie.core.rows import Rows
from coterie.core.task import Task
from coterie.tensors.devices import CPU, working_bytes
from coterie.tensors.threads import most_threads

# What the models of a chunk may occupy, if they are formed, and what its padded samples may, unless
# a single client already has more.
MODEL_BYTES = 64 * 2**20
SAMPLE_BYTES = 64 * 2**20
LARGEST_CHUNK = 256
LARGEST_CHUNK_ON_DEVICE = 1024  # on another device than the CPU
# On a machine of many cores a chunk may be as large as this for each of its threads, so that none
# is idle.
THREAD_BYTES = 8 * 2**20
THREAD_CLIENTS = 16
# Padding may take this share of a chunk's own samples, or as many numbers as this.
PADDING_SHARE = 0.25
PADDING_NUMBERS = 2**16


class Chunking:
    """How many clients share a chunk.

    `sample_numbers` is how many numbers a sample has, `clients` the largest number of clients in a
    chunk; 0: as many as suit the model, at most `largest` on a CPU.
    """

    def __init__(
        self,
        task: Task,
        sample_numbers: int,
        clients: int = 0,
        *,
        device: torch.device = CPU,
        largest: int = LARGEST_CHUNK,
        sample_bytes: int = SAMPLE_BYTES,
    ) -> None:
        self.sample_numbers = sample_numbers
        self.number_bytes = task.layout.dtype.itemsize
        self.device = device
        self.sample_bytes = sample_bytes
        self.clients = clients or self._default_clients(task, largest)

    def _default_clients(self, task: Task, largest: int) -> int:
        """How many clients are in a chunk unless somebody says so."""
        if self.device == CPU:
            largest = max(largest, THREAD_CLIENTS * most_threads())
        else:
            largest = LARGEST_CHUNK_ON_DEVICE
        model_bytes: int = task.layout.size * self.number_bytes
        return max(1, min(largest, self._limit(MODEL_BYTES) // model_bytes))

    def _limit(self, usual: int) -> int:
        """What a chunk may occupy: as much as usual, or more where there are many threads."""
        return working_bytes(self.device, max(usual, THREAD_BYTES * most_threads()))

    def cut(self, sizes: Tensor) -> Iterator[Tensor]:
        """The positions, chunk by chunk, of clients with so many samples in their list [m].

        A client that is very large has a chunk to itself.
        """
        sizes, order = sizes.sort(stable=True)
        width, most = self.sample_numbers, self._limit(self.sample_bytes)
        begin = held = 0  # where the chunk begins, and the samples of its clients
        for place, size in enumerate(sizes.tolist()):
            count, padded = place - begin, (place - begin + 1) * size
            too_large = padded * width * self.number_bytes > most
            padding = padded - held - size
            wasteful = padding > max(PADDING_SHARE * (held + size), PADDING_NUMBERS / width)
            if count and (count == self.clients or too_large or wasteful):
                yield order[begin:place]
                begin, held = place, 0
            held += size
        if len(order):
            yield order[begin:]


class ChunkCache:
    """The last clients that were cut into chunks, and the rows of the last chunk.

    Copies of a run in lock-step share one: a chunk is put together by the first that comes to it.
    """

    def __init__(self) -> None:
        self.asked: Tensor | None = None  # [a] the clients that were last cut into chunks
        self.last_chunks: list[Tensor] = []
        self.ids: Tensor | None = None  # [c] the clients of the last chunk
        self.last_rows: Rows | None = None

    def chunks(self, ids: Tensor, cut: Callable[[Tensor], Iterator[Tensor]]) -> Iterator[Tensor]:
        """What `cut(ids)` gives, unless these are the clients that were cut last."""
        if self.asked is None or not torch.equal(self.asked, ids):
            self.asked, self.last_chunks = ids, list(cut(ids))
        yield from self.last_chunks

    def rows(self, ids: Tensor, load: Callable[[Tensor], Rows]) -> Rows:
        """What `load(ids)` gives, unless these are the clients whose rows were loaded last."""
        if self.ids is None or self.last_rows is None or not torch.equal(self.ids, ids):
            self.ids, self.last_rows = ids, load(ids)
        return self.last_rows
