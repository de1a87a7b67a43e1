"""The folders that runs have in a node's memory: made and marked by coterie, or not touched.

The memory of a node is a folder of its owner's choice, which may hold other things. A run gets a
folder of its own in it, and a marker file inside says so. Only marked folders are ever changed or
removed, and of these only the files that coterie writes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import DataError
from coterie.files import SUFFIX, remove_unfinished, write_text

MARKER = "coterie-memory.json"
STEPS = "steps.json"  # the step that was answered last, and for whom
VERSIONS = "*.safetensors"  # of what clients keep


class KeptRun(NamedTuple):
    """A run in the memory of a node."""

    path: Path
    run: str  # the server's name of it
    finished: bool  # whether the server said that it is over


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
        own = raw["folder"] == path.name  # a marker that was copied elsewhere marks nothing
        return KeptRun(path, str(raw["run"]), raw["finished"] is True) if own else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_run(memory: Path, name: str, run: str) -> Path:
    """The folder `name` of a run; if it is new, folders of runs that have finished are removed."""
    path = memory / name
    known = read_marker(path)
    if known is not None:
        remove_unfinished(path)
        if known.finished:
            mark(path, run, finished=False)  # it is resumed, with more rounds to do
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
        mark(new, run, finished=False, folder=name)
        new.rename(path)
    except OSError as error:
        raise DataError(f"the memory of the node, {memory}, cannot be used: {error}") from error
    return path


def mark(path: Path, run: str, *, finished: bool, folder: str = "") -> None:
    """Say in a folder that coterie made it for a run, and whether the run has finished."""
    content = {"folder": folder or path.name, "run": run, "finished": finished}
    write_text(path / MARKER, json.dumps(content) + "\n")


def remove_run(kept: KeptRun) -> None:
    """Remove what coterie wrote of a run; a folder that holds something else as well stays."""
    if read_marker(kept.path) is None:
        return
    remove_unfinished(kept.path)
    for path in [*kept.path.glob(VERSIONS), kept.path / STEPS, kept.path / MARKER]:
        path.unlink(missing_ok=True)
    if not any(kept.path.iterdir()):
        kept.path.rmdir()
