"""The folder that a run leaves behind.

    config.json             what was run: algorithm, federation, every setting, the command
    rounds.jsonl            one line per round: metrics, sizes, moves between clusters, bytes, time
    checkpoint.safetensors  the state after a round, to go on from: the last one, and some before
    result.json             the outcome in numbers
    clients.json            the clients one by one, and their places on the map
    map.npz                 their places after some of the rounds before the last
    pictures.json           samples of each cluster, where they are images
    report.html             all of it as a page

Every file but rounds.jsonl is replaced as a whole. A line that a killed run left unfinished there,
or that is newer than the checkpoint, is cut off when the run is resumed. Unless the settings say
after which rounds there is a checkpoint, there are as many as take a small share of the time.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError, CoterieError
from coterie.experiment.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from coterie.experiment.settings import RunSettings
from coterie.files import flush, remove_unfinished, to_json, write_text
from coterie.report.run_page import render_run

SAVING_SHARE = 0.05  # of the time of a run, where the settings leave open when to save

Record = dict[str, Any]  # what a round leaves, one line of rounds.jsonl


class RunFolder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = 0.0  # when there was last a checkpoint, and how long that took
        self._saving = 0.0
        self.rounds_saved = 0  # rounds that the last checkpoint holds

    @classmethod
    def open(cls, path: Path, config: dict[str, Any], *, resume: bool) -> RunFolder:
        """A new run folder, or that of a run which is to be resumed."""
        return cls.existing(path) if resume else cls.create(path, config)

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """A new run folder with its configuration; refuse one that is in use or cannot be made."""
        if (path / "config.json").exists():
            raise CoterieError(
                f"{path} already holds a run; `coterie run --resume {path}` continues it"
            )
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
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
        remove_unfinished(path)
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """What was run.

        Settings that did not exist when the run began have their default, which does what was done
        then.
        """
        try:
            config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / 'config.json'} cannot be read: {error}") from error
        if isinstance(config.get("settings"), dict):
            config["settings"] = {**asdict(RunSettings()), **config["settings"]}
        return config

    def discard(self) -> None:
        """Remove the files of a run that could not begin, and the folder if it is empty then."""
        for name in ("config.json", "rounds.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        write_text(self.path / name, to_json(content) + "\n")

    def append(self, record: Any, name: str = "rounds.jsonl") -> None:
        """Add the line of a round."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")

    def due(self, rounds: int, settings: RunSettings) -> bool:
        """Whether there is to be a checkpoint after so many rounds."""
        if settings.checkpoint or rounds == settings.rounds:
            return rounds == settings.rounds or rounds % settings.checkpoint == 0
        return self._saving <= SAVING_SHARE * (time.monotonic() - self._saved)

    def save(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Write the checkpoint that is made now; the lines of its rounds are on disk before it."""
        began = time.monotonic()
        for lines in self.path.glob("*.jsonl"):
            flush(lines)
        made = checkpoint()
        save_checkpoint(self.path / "checkpoint.safetensors", made)
        self.rounds_saved = made.rounds
        self._saved = time.monotonic()
        self._saving = self._saved - began

    def restore(self, run: str) -> tuple[Checkpoint, list[Record]] | None:
        """The checkpoint and the lines of the rounds before it; None if there is none yet."""
        if not (self.path / "checkpoint.safetensors").exists():
            (self.path / "rounds.jsonl").unlink(missing_ok=True)
            return None
        checkpoint = load_checkpoint(self.path / "checkpoint.safetensors", run)

        def is_record(number: int, line: Any) -> bool:
            return line["round"] == number and isinstance(line["seconds"], float)

        rounds = self.rounds_saved = checkpoint.rounds
        lines = self.cut_lines("rounds.jsonl", rounds, "before the checkpoint", is_record)
        return checkpoint, lines

    def cut_lines(
        self, name: str, rounds: int, which: str, is_whole: Callable[[int, Any], bool]
    ) -> list[Any]:
        """The lines of the first `rounds` rounds in a file; those after them are cut off.

        Refused, as a file without the rounds `which`, if `is_whole` is wrong of a line.
        """
        path = self.path / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()[:rounds] if rounds else []
            contents = [json.loads(line) for line in lines]
            whole = len(lines) == rounds and all(map(is_whole, itertools.count(1), contents))
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise CheckpointError(f"{path} does not hold the {rounds} rounds {which}")
        write_text(path, "".join(line + "\n" for line in lines))
        return contents

    def write_report(self, path: Path | None = None) -> Path:
        """Write the page about this run, into the folder unless `path` says where."""
        path = path or self.path / "report.html"
        write_text(path, render_run(self.path))
        return path
