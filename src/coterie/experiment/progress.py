"""The progress of a run: all that changes from round to round, and that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.channel.metering import ByteMeter
from coterie.core.algorithm import Info
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import Record
from coterie.experiment.health import HealthMonitor


@dataclass
class RunProgress:
    """How far a run has got. The memory of its clients is theirs and is not in here."""

    cluster: Tensor  # [m] the last known cluster of each client, -1 before it took part
    health: HealthMonitor
    state: Any = None  # of the algorithm; None before the start
    records: list[Record] = field(default_factory=list)  # one for each round
    bytes: ByteMeter = field(default_factory=ByteMeter)
    start_bytes: list[int] = field(default_factory=lambda: [0, 0])  # down and up, before round 1
    start_seconds: float = 0.0

    @classmethod
    def new(cls, clients: int, health: HealthMonitor) -> RunProgress:
        """The progress before the start."""
        return cls(torch.full((clients,), -1), health)

    def move_clients(self, info: Info) -> dict[int, list[int]]:
        """Update the clusters of the clients that answered; those that changed, by new cluster."""
        moved = info.ids[self.cluster[info.ids] != info.cluster]
        self.cluster[info.ids] = info.cluster
        moves: dict[int, list[int]] = {}
        for i, j in zip(moved.tolist(), self.cluster[moved].tolist(), strict=True):
            moves.setdefault(j, []).append(i)
        return moves

    def cluster_sizes(self, clusters: int) -> list[int]:
        """How many clients each of so many clusters has."""
        known = self.cluster[self.cluster >= 0]
        return torch.bincount(known, minlength=clusters).tolist()

    def to_checkpoint(self, run: str, client_memory: dict[str, Tensor]) -> Checkpoint:
        """The checkpoint of the run with the fingerprint `run`."""
        tensors = {f"state.{name}": value for name, value in self.state._asdict().items()}
        tensors |= client_memory
        tensors["cluster"] = self.cluster
        notes = {
            "bytes": [[*key, count] for key, count in self.bytes.parts.items()],
            "start_bytes": self.start_bytes,
            "start_seconds": self.start_seconds,
            "collapsed": self.health.collapsed,
            "warnings": self.health.warnings,
        }
        return Checkpoint(len(self.records), run, tensors, notes)

    def restore(self, checkpoint: Checkpoint, records: list[Record], kind: type[Any]) -> None:
        """Take over a checkpoint; `kind` is the type of the algorithm's state."""
        tensors, notes = checkpoint.tensors, checkpoint.notes
        self.state = kind(*(tensors[f"state.{name}"] for name in kind._fields))
        self.cluster = tensors["cluster"]
        self.records = records
        for step, way, part, count in notes["bytes"]:
            self.bytes.parts[step, way, part] = count
        self.start_bytes = notes["start_bytes"]
        self.start_seconds = notes["start_seconds"]
        self.health.collapsed = notes["collapsed"]
        self.health.warnings = notes["warnings"]
