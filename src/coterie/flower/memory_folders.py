"""The folders that runs have in a node's memory: made and marked by coterie, or not touched.

The memory of a node is a folder of its owner's choice, which may hold other things. A run gets a
folder of its own in it, and a marker file inside says so. Only marked folders are ever changed or
removed, and of these only the files that coterie writes. `coterie deploy memory` lists them,
removes one, and takes over those of a node that was replaced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import DataError
from coterie.files import SUFFIX, remove_unfinished, write_text

MARKER = "coterie-memory.json"
STEPS = "steps.json"  # the step that was answered last, and for whom
# What clients keep is in versions: rounds done by then, number of the message, attempt at the run.
VERSION = re.compile(r"(\d{8})-(\d{8})-(\w+)\.safetensors")


class RunFacts(NamedTuple):
    """What a run is, for the owner of the memory."""

    run: str  # the server's name of it
    algorithm: str
    clients: int  # of this node


class KeptRun(NamedTuple):
    """A run in the memory of a node."""

    path: Path
    of: RunFacts
    finished: bool  # whether the server said that it is over

    @property
    def run(self) -> str:
        return self.of.run

    @property
    def files(self) -> list[Path]:
        """What coterie wrote of it."""
        own = [*self.versions, self.path / STEPS, self.path / MARKER]
        return [path for path in own if path.is_file()]

    @property
    def versions(self) -> list[Path]:
        """Those that hold what clients keep."""
        return [path for path in self.path.iterdir() if VERSION.fullmatch(path.name)]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def days(self) -> float:
        """Since something was written last."""
        newest = max((path.stat().st_mtime for path in self.files), default=time.time())
        return max(time.time() - newest, 0.0) / 86400


def kept_runs(memory: Path) -> list[KeptRun]:
    """The runs in a node's memory, by the folders that coterie marked; others are left out."""
    if not memory.is_dir():
        return []
    found = [read_marker(path) for path in sorted(memory.iterdir())]
    return [run for run in found if run is not None]


def read_marker(path: Path) -> KeptRun | None:
    """The run whose folder this is; None if coterie did not make it."""
    if path.is_symlink() or not path.is_dir():
        return None
    try:
        raw = json.loads((path / MARKER).read_text(encoding="utf-8"))
        if raw["folder"] != path.name:  # a marker that was copied elsewhere marks nothing
            return None
        of = RunFacts(str(raw["run"]), str(raw.get("algorithm", "")), int(raw.get("clients", 0)))
        return KeptRun(path, of, raw["finished"] is True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None


def open_run(memory: Path, name: str, of: RunFacts) -> Path:
    """The folder `name` of a run; if it is new, folders of runs that have finished are removed."""
    path = memory / name
    known = read_marker(path)
    if known is not None:
        remove_unfinished(path)
        if known.finished:
            mark(path, of, finished=False)  # it is resumed, with more rounds to do
        return path
    if os.path.lexists(path):
        raise DataError(
            f"{path} must be a folder that coterie made for this run, got one without its marker "
            f"{MARKER}: it is left as it is"
        )
    try:
        for other in kept_runs(memory):
            if other.finished:
                remove_run(other)
        # Marked before it has its name: a folder without a marker is never taken for ours.
        new = memory / f".{name}.{os.getpid()}{SUFFIX}"
        new.mkdir(parents=True, exist_ok=True)
        mark(new, of, finished=False, folder=name)
        new.rename(path)
    except OSError as error:
        raise DataError(f"the memory of the node, {memory}, cannot be used: {error}") from error
    return path


def mark(path: Path, of: RunFacts, *, finished: bool, folder: str = "") -> None:
    """Say in a folder that coterie made it for a run, and whether the run has finished."""
    content = {"folder": folder or path.name, **of._asdict(), "finished": finished}
    write_text(path / MARKER, json.dumps(content) + "\n")


def remove_run(kept: KeptRun) -> None:
    """Remove what coterie wrote of a run; a folder that holds something else as well stays."""
    if read_marker(kept.path) is None:
        return
    remove_unfinished(kept.path)
    for path in kept.files:  # the marker last
        path.unlink(missing_ok=True)
    if not any(kept.path.iterdir()):
        kept.path.rmdir()


def find_kept(memory: Path, run: str) -> list[KeptRun]:
    """The folders that a run has in a node's memory; refuse a run that has none."""
    found = [kept for kept in kept_runs(memory) if kept.run == run]
    if not found:
        known = ", ".join(dict.fromkeys(kept.run for kept in kept_runs(memory))) or "none"
        raise DataError(f"nothing of a run {run} is kept in {memory} (runs there: {known})")
    return found


def take_over(memory: Path, predecessor: Path) -> list[KeptRun]:
    """Copy what another node kept to this node's memory: all of its runs, or the folder of one.

    A run of which something is kept here is refused; all are copied or none.
    """
    one = read_marker(predecessor)
    given = kept_runs(predecessor) if one is None else [one]
    if not given:
        raise DataError(f"{predecessor} must be the memory of a node, got no folder with {MARKER}")
    for kept in given:
        here = read_marker(memory / kept.path.name)
        if here is not None and here.versions:
            raise DataError(
                f"{memory} has something of the run {kept.run} already: it is removed first with "
                f"--remove {kept.run}"
            )
        if here is None and os.path.lexists(memory / kept.path.name):
            raise DataError(f"{memory / kept.path.name} must not be there, or have been made by us")
    ready = []
    try:
        memory.mkdir(parents=True, exist_ok=True)
        for kept in given:
            new = memory / f".{kept.path.name}.{os.getpid()}{SUFFIX}"
            ready.append((kept, new))
            new.mkdir()
            for path in kept.files:
                shutil.copy2(path, new / path.name)
        for kept, new in ready:
            here = read_marker(memory / kept.path.name)
            if here is not None:  # a step was asked for and refused
                remove_run(here)
            new.rename(memory / kept.path.name)
    except OSError as error:
        raise DataError(f"{predecessor} cannot be copied to {memory}: {error}") from error
    finally:
        for _, new in ready:
            shutil.rmtree(new, ignore_errors=True)
    return [kept for kept in kept_runs(memory) if kept.path.name in {g.path.name for g in given}]
