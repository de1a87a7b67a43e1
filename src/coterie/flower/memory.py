"""What the clients of a node keep between rounds, on the node's own disk.

A run may have to go back: a SuperLink that dies is started again, and the run goes on from the last
checkpoint, which may be some rounds behind what the nodes have done. So every change of the memory
is kept as a version, named after the rounds done by then and the attempt that made it:

    RUN/00000007-ATTEMPT.safetensors

A message that trains towards 8 rounds builds on the newest version up to 7, and on what the same
attempt has already done towards 8; versions of other attempts from 8 on belong to rounds that the
run has gone back on, and are removed. Versions older than the server's checkpoint are removed too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import safetensors.torch

from coterie.engine.client_memory import ClientMemory
from coterie.files import remove_unfinished, write_atomically

RUNS_KEPT = 2  # runs whose memory stays; those before are over
VERSION = re.compile(r"(\d{8})-(\w+)\.safetensors")


class MemoryVersions:
    """The versions of the clients' memory on a node, for one run."""

    def __init__(self, folder: Path, run: str) -> None:
        assert re.fullmatch(r"\w+", run), run
        self.folder = folder / run
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        others = [path for path in folder.iterdir() if path.is_dir() and path != self.folder]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for old in others[RUNS_KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def read(self, memory: ClientMemory, rounds: int, attempt: str, *, training: bool) -> None:
        """Let `memory` be what it was after `rounds` rounds, or what `attempt` made of it so far.

        If `training`, the message leads to `rounds`, and what other attempts made of it is removed.
        """
        for number, maker, path in self._versions():
            if training and number >= rounds and maker != attempt:
                path.unlink()
        usable = [path for number, _, path in self._versions() if number <= rounds]
        memory.rows, memory.known, memory.changed = {}, {}, False
        if usable:
            for name, tensor in safetensors.torch.load_file(usable[-1]).items():
                owner, _, rest = name.partition(".")
                (memory.rows if owner == "rows" else memory.known)[rest] = tensor

    def write(self, memory: ClientMemory, rounds: int, attempt: str, saved: int) -> None:
        """Keep `memory` as that after `rounds` rounds; the server has a checkpoint of `saved`."""
        tensors = {f"rows.{name}": rows.contiguous() for name, rows in memory.rows.items()}
        tensors |= {f"known.{name}": known for name, known in memory.known.items()}
        path = self.folder / f"{rounds:08d}-{attempt}.safetensors"
        write_atomically(path, lambda file: safetensors.torch.save_file(tensors, file))
        memory.changed = False
        before = [path for number, _, path in self._versions() if number <= saved]
        for old in before[:-1]:
            old.unlink()

    def _versions(self) -> list[tuple[int, str, Path]]:
        """Every version: rounds, attempt and file; the newest last."""
        matches = [(VERSION.fullmatch(path.name), path) for path in self.folder.iterdir()]
        found = [(int(match[1]), match[2], path) for match, path in matches if match]
        return sorted(found, key=lambda version: (version[0], version[2].stat().st_mtime_ns))
