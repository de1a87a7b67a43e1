"""What clients keep for themselves between rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.tensors.devices import CPU


class ClientMemory:
    """What `count` clients keep between rounds: for each name one row per client.

    `locate` says which row a client has, by its id; if it is not given, the id is the row. A row
    behind the last belongs to an unseen client, which keeps and remembers nothing.
    """

    def __init__(self, count: int, locate: Callable[[Tensor], Tensor] = lambda ids: ids) -> None:
        self.count = count
        self.locate = locate
        self.rows: dict[str, Tensor] = {}  # name -> [m, ...]
        self.known: dict[str, Tensor] = {}  # name -> [m] who kept something
        self.marked: dict[str, Tensor] = {}  # what there was when it was marked, as tensors
        self.changed = False  # whether something was kept since somebody last said no

    def remembers(self, name: str, ids: Tensor) -> Tensor:
        """Which of `ids` kept something."""
        rows = self.locate(ids)
        seen = rows < self.count
        if name not in self.known:
            return torch.zeros_like(seen)
        return self.known[name][torch.where(seen, rows, 0)] & seen

    def recall(self, name: str, ids: Tensor) -> Tensor:
        """The rows of `ids`; those of clients that kept nothing mean nothing."""
        return self.rows[name][self.locate(ids).clamp_max(self.count - 1)]

    def keep(self, name: str, ids: Tensor, value: Tensor) -> None:
        if name not in self.rows:
            self.rows[name] = value.new_zeros(self.count, *value.shape[1:])
            self.known[name] = torch.zeros(self.count, dtype=torch.bool, device=CPU)
        rows = self.locate(ids)
        seen = rows < self.count
        if not bool(seen.all()):
            rows, value = rows[seen], value[seen]
        self.rows[name][rows] = value
        self.known[name][rows] = True
        self.changed = True

    def mark(self) -> None:
        """Hold on to what is kept now, in the place of what was marked before."""
        self.marked = {name: tensor.clone() for name, tensor in self._kept().items()}

    def exchange(self) -> None:
        """Let what was marked be what is kept, and the other way round."""
        kept, self.rows, self.known = self._kept(), {}, {}
        self.restore(self.marked)
        self.marked = kept

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything, by names that `restore` takes."""
        return self._kept() | {f"marked.{name}": kept for name, kept in self.marked.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what a checkpoint holds; other tensors are ignored."""
        for name, tensor in tensors.items():
            owner, _, rest = name.partition(".")
            if owner in ("memory", "known"):
                (self.rows if owner == "memory" else self.known)[rest] = tensor
            elif owner == "marked":
                self.marked[rest] = tensor
        self.changed = True

    def _kept(self) -> dict[str, Tensor]:
        """What is kept now."""
        kept = {f"memory.{name}": rows for name, rows in self.rows.items()}
        return kept | {f"known.{name}": known for name, known in self.known.items()}
