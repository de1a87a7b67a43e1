"""Frames of the client map: where the clients were after some rounds, for the report's slider.

A frame costs an evaluation of all clients, so there are few of them: up to `FRAMES`, close together
in the first rounds, where clusters form, and further and further apart later on.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from coterie.files import write_bytes
from coterie.report.run_files import read_frames

FRAMES = 12
FILE = "map.npz"


def frame_rounds(rounds: int, evaluate: int) -> set[int]:
    """The rounds after which a frame is taken: some that are evaluated, in steps that grow.

    The last round is not among them, for its map is in `clients.json`. One round in four at most
    has a frame, so that short runs are not held up.

    >>> sorted(frame_rounds(rounds=300, evaluate=1))
    [1, 2, 3, 5, 8, 13, 22, 38, 63, 106, 179]
    >>> sorted(frame_rounds(rounds=60, evaluate=1))
    [1, 2, 3, 4, 6, 9, 14, 20, 29, 41]
    """
    evaluated = range(evaluate, rounds, evaluate)
    count = min(FRAMES, rounds // 4, len(evaluated) + 1)
    steps = {round((len(evaluated) + 1) ** (i / max(1, count - 1))) for i in range(count)}
    return {evaluated[step - 1] for step in steps if step <= len(evaluated)}


@dataclass
class MapFrames:
    """The frames of a run so far."""

    true: Tensor | None  # [m] true clusters
    due: set[int] = field(default_factory=set)  # the rounds after which there is to be a frame
    rounds: list[int] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)  # what each is a projection of
    points: list[np.ndarray] = field(default_factory=list)  # each [m, 2]
    cluster: list[np.ndarray] = field(default_factory=list)  # each [m], -1 unknown

    def add(self, round: int, drawn: str, points: Tensor, cluster: Tensor) -> None:
        """Add where the clients are after a round, and in which cluster."""
        self.rounds.append(round)
        self.drawn.append(drawn)
        self.points.append(points.float().numpy())
        self.cluster.append(cluster.int().numpy().copy())

    def save(self, folder: Path) -> None:
        """Write `map.npz`: one array for each field."""
        if not self.rounds:
            return
        arrays = {
            "rounds": np.array(self.rounds),
            "drawn": np.array(self.drawn),
            "points": np.stack(self.points),
            "cluster": np.stack(self.cluster),
        }
        if self.true is not None:
            arrays["true"] = self.true.numpy()
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_bytes(folder / FILE, buffer.getvalue())

    def restore(self, folder: Path, rounds: int) -> None:
        """Take up the frames of the first `rounds` rounds that a folder holds."""
        arrays: dict[str, np.ndarray] = {}
        # A file that cannot be read costs the slider some rounds; the run goes on without them.
        with suppress(ValueError):
            arrays = read_frames(folder / FILE)
        if arrays:
            kept = arrays["rounds"] <= rounds
            self.rounds = arrays["rounds"][kept].tolist()
            self.drawn = arrays["drawn"][kept].tolist()
            self.points, self.cluster = [*arrays["points"][kept]], [*arrays["cluster"][kept]]
