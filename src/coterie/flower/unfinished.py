"""The runs of a server that have not finished: what it goes on with when it is started again.

A server names a folder to its ServerApps, in which each notes its run when it begins: a folder of
its own, with the app and `note.json`. The note goes when the run has finished, or has ended with an
error, which it would do again. A ServerApp that is killed leaves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coterie.files import to_json, write_text

FOLDER = "COTERIE_UNFINISHED"  # environment variable: the folder of the notes
NOTE = "note.json"


@dataclass(frozen=True)
class Note:
    """A run that has not finished.

    out       its folder
    run       Flower's name of the attempt at it
    link      the SuperLink that this name is of
    pid, born the ServerApp's process; 0: it has not begun yet
    attempts  how often it was begun again since it last got on
    rounds    how far it was then
    """

    out: str
    run: int
    link: str
    pid: int = 0
    born: float = 0.0
    attempts: int = 0
    rounds: int = 0

    @property
    def alive(self) -> bool:
        """Whether its ServerApp runs."""
        import psutil

        try:
            process = psutil.Process(self.pid) if self.pid else None
            if process is None or process.status() == psutil.STATUS_ZOMBIE:
                return False  # killed, and nobody has asked how it ended
            return bool(process.create_time() == self.born)
        except psutil.Error:
            return False

    def rounds_done(self) -> int:
        """How many rounds it has done."""
        try:
            return (Path(self.out) / "rounds.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


def note_folder(folder: Path, out: Path) -> Path:
    """Where the note of a run is, by its run folder."""
    return folder / hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]


def read_note(home: Path) -> Note | None:
    """The note in a folder; None if there is none that can be read."""
    try:
        return Note(**json.loads((home / NOTE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_note(home: Path, note: Note) -> None:
    """Write a note, as a whole or not at all."""
    write_text(home / NOTE, to_json(asdict(note)) + "\n")


@contextlib.contextmanager
def noted(out: Path, run: int, write_app: Callable[[Path], object]) -> Iterator[None]:
    """Note a run while it is done inside; `write_app` writes its app into a new folder."""
    import psutil

    folder, link = os.environ.get(FOLDER, ""), os.environ.get("FLWR_HOME", "")
    if not folder:
        yield
        return
    home = note_folder(Path(folder), out)
    before = read_note(home) or Note(str(out.resolve()), run, link)
    app = home / "app"
    shutil.rmtree(app, ignore_errors=True)
    app.mkdir(parents=True)
    write_app(app)
    me = os.getpid()
    born = psutil.Process(me).create_time()
    write_note(home, replace(before, run=run, link=link, pid=me, born=born))
    try:
        yield
    except Exception:  # not what ends a process from outside
        shutil.rmtree(home, ignore_errors=True)
        raise
    shutil.rmtree(home, ignore_errors=True)
