"""What a server looks after: the keys of new nodes, and runs that have not finished."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import ControlClient, build_bundle
from coterie.flower.unfinished import NOTE, Note, read_note, write_note

ATTEMPTS = 5  # to go on with a run that does not get on


class Keyring:
    """The public keys in a folder, which are registered with a SuperLink one after another.

    What cannot be registered is said once, and tried again: the SuperLink may not have answered,
    or the file may not have been whole.
    """

    def __init__(self, folder: Path, show: Callable[[str], object]) -> None:
        self.folder, self.show = folder, show
        self.registered: set[Path] = set()
        self.failed: dict[Path, str] = {}  # why, as it was said

    def register(self, control: ControlClient) -> None:
        """Register the keys that are new, and those that could not be registered."""
        for path in sorted(set(self.folder.glob("*.pub")) - self.registered):
            try:
                control.register_node(path)
            except (CoterieError, OSError) as error:
                # A request whose answer was lost may have done what it was for.
                done = path in self.failed and "already in use" in str(error).lower()
                if not done:
                    if self.failed.get(path) != str(error):
                        self.show(f"node {path.stem} may not join: {error}")
                    self.failed[path] = str(error)
                    continue
            self.registered.add(path)
            self.show(f"node {path.stem} may join")


class UnfinishedRuns:
    """The runs that are noted in a folder (coterie.flower.unfinished), for a SuperLink to go on."""

    def __init__(self, folder: Path, link: str, show: Callable[[str], object]) -> None:
        self.folder, self.link, self.show = folder, link, show
        self.failed: dict[str, str] = {}  # why a run could not go on, as it was said

    def go_on(self, control: ControlClient) -> None:
        """Start those again whose ServerApp has ended without a word, unless they were stopped."""
        for path in sorted(self.folder.glob(f"*/{NOTE}")):
            note = read_note(path.parent)
            if note is None or note.alive:
                continue
            try:
                self._decide(control, path.parent, note)
            except (CoterieError, OSError) as error:
                if self.failed.get(note.out) != str(error):
                    self.show(f"the run in {note.out} cannot go on: {error}")
                self.failed[note.out] = str(error)

    def _decide(self, control: ControlClient, home: Path, note: Note) -> None:
        if note.link == self.link:
            status = control.run_status(note.run)
            if status.finished and (status.stopped or status.completed):
                shutil.rmtree(home, ignore_errors=True)
                return
            if not status.finished and not note.pid:
                return  # it has been started, and its ServerApp has not begun yet
            if not status.finished:
                control.stop_run(note.run)  # nodes need not wait for it
        rounds = note.rounds_done()
        attempts = 1 if rounds > note.rounds else note.attempts + 1
        if attempts > ATTEMPTS:
            self.show(f"the run in {note.out} is given up: it ended {ATTEMPTS} times in one round")
            shutil.rmtree(home, ignore_errors=True)
            return
        bundle = build_bundle(home / "app")
        run = control.start_run(bundle, {"out": note.out, "resume": True})
        again = Note(note.out, run, self.link, attempts=attempts, rounds=rounds)
        write_note(home, again)
        self.show(f"the run in {note.out} goes on after round {rounds} (run {run})")
