"""The folder that a run leaves behind.

    config.json             what was run: algorithm, federation, every setting, the command
    schema.json             of a user's table: how its rows become samples (docs/data.md)
    rounds.jsonl            one line per round: metrics, sizes, moves between clusters, bytes, time
    rounds.crc              a checksum for each of these lines
    checkpoint.safetensors  the state after a round, to go on from: the last one, and some before
    models.safetensors      the models, and whom they serve: all that prediction needs
    result.json             the outcome in numbers
    quality.json            confusion, calibration, each group alone, and what a constant reaches
    clients.json            the clients one by one, and their places on the map
    map.npz                 their places after some of the rounds before the last
    pictures.json           samples of each cluster, where they are images, and draws from its model
    samples.json            where samples are clustered, a map of some, and what their features are
    report.html             all of it as a page
    outcome.crc             of a finished run, a checksum for each file that `report` reads

Every file but those of the rounds is replaced as a whole. A line that a killed run left unfinished
there, or that is newer than the checkpoint, is cut off when the run is resumed. Unless the settings
say after which rounds there is a checkpoint, there are as many as take a small share of the time.

Who writes to the folder has locked it. The lock ends with its process, and reading needs none.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError, CoterieError, CoterieWarning, SettingError
from coterie.data.federation import Federation
from coterie.experiment.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from coterie.experiment.history import History
from coterie.experiment.settings import RunSettings
from coterie.files import (
    LOCK,
    FolderLock,
    flush,
    lock_owner,
    read_json,
    remove_checksums,
    remove_unfinished,
    to_json,
    write_checksums,
    write_text,
)
from coterie.report.run_page import render_run
from coterie.report.template import shared_library
from coterie.version import __version__

SAVING_SHARE = 0.05  # of the time of a run, where the settings leave open when to save
OUTCOME = (
    *("result.json", "quality.json", "clients.json", "pictures.json", "samples.json"),
    "report.html",
)
CHECKED = ("config.json", "schema.json", "map.npz", "rounds.crc", *OUTCOME[:-1])
ON_THE_WAY = (
    *("rounds.jsonl", "rounds.crc"),
    *("copies.jsonl", "copies.crc", "copies.jsonl.gz", "map.npz"),
)

Record = dict[str, Any]  # what a round leaves, one line of rounds.jsonl


class RunFolder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = 0.0  # when there was last a checkpoint, and how long that took
        self._saving = 0.0
        self.rounds_saved = 0  # rounds that the last checkpoint holds
        self.history = History(path)
        self.data = ""  # the digest of the data that the run is on
        self._lock: FolderLock | None = None

    @classmethod
    def open(cls, path: Path, config: dict[str, Any], *, resume: bool) -> RunFolder:
        """A new run folder, or that of a run which is to be resumed; locked."""
        if not resume:
            return cls.create(path, config)
        folder = cls.existing(path)
        folder.lock()
        remove_unfinished(path)
        return folder

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """A new run folder with its configuration, locked; refuse one that cannot be made."""
        if (path / "config.json").exists():
            raise CoterieError(
                f"{path} already holds a run; `coterie run --resume {path}` continues it"
            )
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            remove_unfinished(path, "config.json.")  # of a run that was killed as it began
            if any(entry.name != LOCK for entry in path.iterdir()):
                folder.unlock()
                raise CoterieError(f"the run folder {path} must be new or empty")
            folder.write("config.json", config)
        except OSError as error:
            if path.is_dir():
                folder.discard()
            raise CoterieError(
                f"cannot write to the run folder {path}: {error.strerror}"
            ) from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was begun before."""
        if not (path / "config.json").is_file():
            raise CoterieError(f"{path} is not a run folder: it has no config.json")
        return cls(path)

    def lock(self) -> None:
        """Keep the folder to this run, until `unlock` or the end of the process."""
        if self._lock is not None:
            return
        try:
            self._lock = lock = FolderLock(self.path)
        except BlockingIOError:
            owner = lock_owner(self.path)
            raise CoterieError(
                f"the run folder {self.path} is in use by another run"
                f"{f' (process {owner})' if owner else ''}; wait for it, or end it"
            ) from None
        except OSError as error:
            raise CoterieError(
                f"cannot write to the run folder {self.path}: {error.strerror}"
            ) from error
        weakref.finalize(self, lock.release)

    def unlock(self) -> None:
        """Let another run use the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder to this run for a while."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    @contextmanager
    def unlocked_after_error(self) -> Iterator[None]:
        """Unlock the folder if what is done inside fails."""
        try:
            yield
        except BaseException:
            self.unlock()
            raise

    @property
    def config(self) -> dict[str, Any]:
        """What was run.

        Settings that did not exist when the run began have their default, which does what was done
        then.
        """
        path = self.path / "config.json"
        try:
            config: dict[str, Any] = read_json(path, {})
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
            raise CheckpointError(f"{path} does not describe a run: it has no settings")
        config["settings"] = {**asdict(RunSettings()), **config["settings"]}
        return config

    def discard(self) -> None:
        """Remove the files of a run that could not begin, and the folder if it is empty then."""
        self.unlock()
        for name in ("config.json", "schema.json", *ON_THE_WAY):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file; the checksums of all are gone before one changes."""
        remove_checksums(self.path)
        write_text(self.path / name, to_json(content) + "\n")

    def write_checksums(self) -> None:
        """Write the checksums of all that the page is drawn from but the lines of rounds."""
        write_checksums(self.path, CHECKED)

    def write_schema(self, federation: Federation) -> None:
        """Write how rows of a user's table become samples, unless that is there."""
        schema = None if federation.schema is None else federation.schema.raw()
        there = None
        with suppress(OSError, ValueError):
            there = read_json(self.path / "schema.json")
        if schema is not None and there != schema:
            self.write("schema.json", schema)

    def due(self, rounds: int, settings: RunSettings) -> bool:
        """Whether there is to be a checkpoint after so many rounds."""
        if settings.checkpoint or rounds == settings.rounds:
            return rounds == settings.rounds or rounds % settings.checkpoint == 0
        return self._saving <= SAVING_SHARE * (time.monotonic() - self._saved)

    def save(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Write the checkpoint that is made now; the lines of its rounds are on disk before it."""
        began = time.monotonic()
        for lines in (*self.path.glob("*.jsonl"), *self.path.glob("*.crc")):
            flush(lines)
        made = checkpoint()
        facts = {"lines": self.history.facts, "data": self.data, "coterie": __version__}
        made = made._replace(notes={**made.notes, **facts})
        save_checkpoint(self.path / "checkpoint.safetensors", made)
        self.rounds_saved = made.rounds
        self._saved = time.monotonic()
        self._saving = self._saved - began

    def keep_warnings(self, run: str, warnings: list[str]) -> None:
        """Add warnings of a round that failed to the checkpoint of the rounds before it."""
        path = self.path / "checkpoint.safetensors"
        # The error of that round is what is raised, whatever becomes of this.
        with suppress(OSError, CheckpointError):
            if warnings and path.exists():
                checkpoint = load_checkpoint(path, run)
                kept = [*checkpoint.notes["warnings"], *warnings]
                notes = {**checkpoint.notes, "warnings": kept}
                save_checkpoint(path, checkpoint._replace(notes=notes))

    def remove_outcome(self) -> None:
        """Remove what was said of the outcome: the run goes on."""
        remove_checksums(self.path)
        for name in OUTCOME:
            (self.path / name).unlink(missing_ok=True)

    def restore(
        self, fingerprint: Callable[[int | None], str], config: dict[str, Any]
    ) -> tuple[Checkpoint, list[Record]] | None:
        """The checkpoint and the lines of the rounds before it; None if no round was begun.

        A run may go on with another number of rounds than before; config.json then says so. Its
        `fingerprint` is without them, or in earlier versions with those that it was to have.
        """
        before, rounds = self.config, config["settings"]["rounds"]
        rounds_before = before["settings"]["rounds"]
        checkpoint, lines = None, []
        if os.path.lexists(self.path / "checkpoint.safetensors"):
            known = fingerprint(None), fingerprint(rounds_before)
            checkpoint = load_checkpoint(self.path / "checkpoint.safetensors", *known)
            self._check_data(checkpoint)
            lines = self._cut_rounds(checkpoint, rounds)
            warn_of_version(checkpoint.notes.get("coterie", before.get("coterie")))
        else:
            self._check_not_begun()
        if rounds_before != rounds:
            settings = {**before["settings"], "rounds": rounds}
            changed = {"settings": settings, "command": config["command"]}
            self.write("config.json", before | changed)
        return None if checkpoint is None else (checkpoint, lines)

    def _check_not_begun(self) -> None:
        """Refuse to begin anew where rounds were done: what they led to is missing."""
        names = (*ON_THE_WAY, "result.json", "clients.json")
        left = [name for name in names if os.path.lexists(self.path / name)]
        if left:
            raise CheckpointError(
                f"{self.path} has {left[0]} but no checkpoint.safetensors to go on from: put it "
                "back, or begin the run anew in another folder"
            )

    def _check_data(self, checkpoint: Checkpoint) -> None:
        """Refuse data that are not those of the rounds before; earlier versions did not keep it."""
        if checkpoint.notes.get("data", self.data) != self.data:
            raise CheckpointError(
                f"the data have changed since the run in {self.path} began: its rounds would no "
                "longer belong together; begin a new run"
            )

    def _cut_rounds(self, checkpoint: Checkpoint, wanted: int) -> list[Record]:
        """The lines of the rounds that a checkpoint holds; refuse to end before them."""
        done = checkpoint.rounds
        if wanted < done:
            raise SettingError(
                f"`rounds` of a resumed run must be at least the rounds that are done, {done}, "
                f"got {wanted}"
            )

        def is_record(number: int, line: Any) -> bool:
            return line["round"] == number and isinstance(line["seconds"], float)

        self.rounds_saved = done
        return self.cut_lines("rounds.jsonl", checkpoint, "before the checkpoint", is_record)

    def cut_lines(
        self,
        name: str,
        checkpoint: Checkpoint,
        which: str,
        is_whole: Callable[[int, Any], bool],
    ) -> list[Any]:
        """What `History.cut` says of the rounds that a checkpoint holds."""
        facts = checkpoint.notes.get("lines", {})
        return self.history.cut(name, checkpoint.rounds, which, is_whole, facts)

    def write_report(self, path: Path | None = None) -> Path:
        """Write the page about this run, into the folder unless `path` says where.

        In the folder of a sweep, its runs share what draws the charts.
        """
        library = "" if path else shared_library(self.path)
        path = path or self.path / "report.html"
        write_text(path, render_run(self.path, library=library))
        return path


def warn_of_version(before: object) -> None:
    """Say that a run goes on with another version of coterie than it was left with."""
    if before != __version__:
        warnings.warn(
            f"the rounds so far are of coterie {before}, those to come of {__version__}: their "
            "numbers may differ in the last digits",
            CoterieWarning,
            stacklevel=2,
        )
