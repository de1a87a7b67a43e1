"""What samples are made of where one tensor is not enough: several inputs, and sequences.

Samples have three forms, from the disk to the network:

    stored   all samples one after another: a tensor [N, ...], `Ragged` sequences of their own
             lengths, or several named `Inputs`; nothing is padded
    indexed  those of a chunk of clients, by their numbers [m, n]: `Indexed`; nothing is padded
    batch    those that a network sees at once: a tensor [b, ...], `Padded` sequences, or `Inputs`

Samples that are one tensor stay one tensor in all three forms. Sequences are padded to the longest
of their batch and of no other, so that a result does not depend on who shares a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of their own lengths, one after another.

    >>> words = Ragged.of([[5, 2, 7], [3]])
    >>> words.lengths.tolist(), words.values.tolist()
    ([3, 1], [5, 2, 7, 3])
    """

    values: Tensor  # [T, ...] the tokens of all sequences
    offsets: Tensor  # [N + 1]: sequence i has tokens offsets[i] to offsets[i + 1]

    @classmethod
    def of(cls, sequences: Sequence[Any]) -> Ragged:
        """Store sequences: tensors, arrays or lists [L_i, ...]."""
        tensors = [torch.as_tensor(sequence) for sequence in sequences]
        lengths = torch.tensor([0, *map(len, tensors)])
        return cls(torch.cat(tensors), lengths.cumsum(0))

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, [N]."""
        return self.offsets.diff()

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    def __getitem__(self, rows: slice | Tensor) -> Ragged:
        """Some of the sequences, flat as these; a slice is a view."""
        if isinstance(rows, slice):
            begin, end, _ = rows.indices(len(self))
            offsets = self.offsets[begin : max(begin, end) + 1]
            return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        lengths = self.lengths[rows]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = (self.offsets[rows] - offsets[:-1]).repeat_interleave(lengths)
        place = torch.arange(len(shift), device=shift.device)
        return Ragged(self.values[place + shift], offsets)

    def map(self, change: Change) -> Ragged:
        """The same sequences of changed tokens."""
        return Ragged(change(self.values), self.offsets)

    def to(self, device: torch.device) -> Ragged:
        """The same on a device."""
        return Ragged(self.values.to(device), self.offsets.to(device))

    def clone(self) -> Ragged:
        """A copy that holds these sequences only."""
        return Ragged(self.values.clone(), self.offsets.clone())

    def pad(self, rows: Tensor) -> Padded:
        """The sequences numbered `rows` [b] side by side."""
        begin, lengths = self.offsets[rows], self.lengths[rows]
        longest = int(lengths.max()) if len(rows) else 0
        place = torch.arange(longest, device=lengths.device)
        inside = place < lengths[:, None]  # [b, L]
        values = self.values[torch.where(inside, begin[:, None] + place, 0)]
        values[~inside] = 0
        return Padded(values, lengths)


@dataclass(frozen=True, eq=False)
class Padded:
    """Sequences of a batch side by side, zeros behind each.

    >>> batch = Ragged.of([[5, 2, 7], [3]]).pad(torch.tensor([1, 0]))
    >>> batch.values.tolist(), batch.lengths.tolist()
    ([[3, 0, 0], [5, 2, 7]], [1, 3])
    """

    values: Tensor  # [..., b, L, ...]
    lengths: Tensor  # [..., b] tokens that count; those behind them are padding

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def device(self) -> torch.device:
        return self.lengths.device

    @property
    def mask(self) -> Tensor:
        """Which tokens count, [..., b, L]."""
        longest = self.values.shape[self.lengths.dim()]
        return torch.arange(longest, device=self.device) < self.lengths[..., None]

    def __getitem__(self, index: Any) -> Padded:
        """Some of the sequences, as wide as before."""
        return Padded(self.values[index], self.lengths[index])

    def map(self, change: Change) -> Padded:
        """The same sequences of changed tokens."""
        return Padded(change(self.values), self.lengths)

    def clone(self) -> Padded:
        """A copy."""
        return Padded(self.values.clone(), self.lengths.clone())

    def trim(self) -> Padded:
        """The same sequences, no wider than the longest of them."""
        longest = int(self.lengths.max()) if self.lengths.numel() else 0
        return Padded(self.values.narrow(self.lengths.dim(), 0, longest), self.lengths)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Several inputs of each sample, by name: all stored, or all of a batch."""

    parts: dict[str, Any]  # name -> a tensor or sequences

    def __len__(self) -> int:
        """The number of samples."""
        return len(next(iter(self.parts.values())))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def __getitem__(self, index: Any) -> Any:
        """The input of a name, or all inputs of some samples."""
        if isinstance(index, str):
            return self.parts[index]
        return self.apply(lambda part: part[index])

    def apply(self, change: Callable[[Any], Any]) -> Inputs:
        """What `change` makes of each input."""
        return Inputs({name: change(part) for name, part in self.parts.items()})

    def map(self, change: Change) -> Inputs:
        """The same with changed numbers."""
        return self.apply(lambda p: change(p) if isinstance(p, Tensor) else p.map(change))

    def to(self, device: torch.device) -> Inputs:
        """The same on a device."""
        return self.apply(lambda part: part.to(device))

    def clone(self) -> Inputs:
        """A copy that holds these samples only."""
        return self.apply(lambda part: part.clone())


Stored = Tensor | Ragged | Inputs


@dataclass(frozen=True, eq=False)
class Indexed:
    """Samples by their numbers among stored ones; indexing it is indexing the numbers."""

    stored: Stored
    index: Tensor  # [m, n], or what was taken of it

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Indexed]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Indexed:
        return Indexed(self.stored, self.index[index])

    @property
    def shape(self) -> torch.Size:
        return self.index.shape

    @property
    def device(self) -> torch.device:
        return self.index.device

    @property
    def is_cpu(self) -> bool:
        return self.index.is_cpu

    def numel(self) -> int:
        """How many samples these are."""
        return self.index.numel()

    def data_ptr(self) -> int:
        """Where the numbers lie, which tells these samples from others."""
        return self.index.data_ptr()

    def map(self, change: Change) -> Indexed:
        """The same samples with changed numbers."""
        stored = self.stored
        changed = change(stored) if isinstance(stored, Tensor) else stored.map(change)
        return Indexed(changed, self.index)

    def to(self, device: torch.device) -> Indexed:
        """The same on a device."""
        return Indexed(self.stored.to(device), self.index.to(device))

    def gather(self) -> Any:
        """The samples of an index [b] as a batch."""
        return gather_rows(self.stored, self.index)


def gather_rows(stored: Stored, rows: Tensor) -> Any:
    """The samples numbered `rows` [b] as a batch."""
    if isinstance(stored, Tensor):
        return stored[rows]
    if isinstance(stored, Ragged):
        return stored.pad(rows)
    return stored.apply(lambda part: gather_rows(part, rows))


def as_batch(samples: Any) -> Any:
    """Samples as a network sees them: sequences are padded, a batch and a tensor stay as they are.

    >>> as_batch(Ragged.of([[5, 2, 7], [3]])).values.shape
    torch.Size([2, 3])
    """
    if isinstance(samples, Indexed):
        return samples.gather()
    if isinstance(samples, Ragged):
        return samples.pad(torch.arange(len(samples), device=samples.offsets.device))
    return samples.apply(as_batch) if isinstance(samples, Inputs) else samples


def place_rows(stored: Stored, index: Tensor, inside: Tensor) -> Tensor | Indexed:
    """The samples numbered `index` [m, n] of stored ones; those not `inside` are padding."""
    if isinstance(stored, Tensor):
        found = stored[index]
        found[~inside] = 0
        return found
    place = torch.zeros_like(index)
    place[inside] = torch.arange(int(inside.sum()), device=index.device)
    return Indexed(stored[index[inside]], place)


def view_rows(stored: Stored, begin: int, clients: int, samples: int) -> Tensor | Indexed:
    """The samples from `begin` on of so many clients with so many samples each, without a copy."""
    part = stored[begin : begin + clients * samples]
    if isinstance(part, Tensor):
        return part.view(clients, samples, *part.shape[1:])
    return Indexed(part, torch.arange(clients * samples).view(clients, samples))
