"""Grids: a run with several starts and several values of a setting, all in one pass.

Every combination of a start and of values is a copy of the run: the same federation, the same
participants and batches, other models. The copies run in lock-step (`engine/copies/lockstep.py`).
The outcome is that of the copy with the lowest training loss; the truth, where it is known, has no
say. A copy whose models are no longer finite has diverged and is left behind.

The folder is that of the best copy, with the others' numbers in `result.json` under `copies` and
their rounds in `copies.jsonl`: one line for each round, in it one record for each copy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.algorithm import Algorithm
from coterie.core.errors import CheckpointError, CoterieError, CoterieWarning, SettingError
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engine.copies.lockstep import LockstepClients, LockstepThreads
from coterie.evaluation.evaluator import Evaluator
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.health import Watch
from coterie.experiment.run import Run, described
from coterie.experiment.settings import RunSettings, grid_text, setting_names
from coterie.files import to_json, write_text

COPIES = "copies.jsonl"


class Copy(Run):
    """One copy of a run, in step with the others."""

    def __init__(
        self,
        point: dict[str, Any],
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task,
        settings: RunSettings,
        config: dict[str, Any],
        start: int,
        clients: LockstepClients,
    ) -> None:
        train, test = clients.train(), None
        if federation.test is not None:
            first = len(federation) if federation.unseen else 0
            test = clients.test(federation.test, train, first)
        super().__init__(
            algorithm,
            federation,
            task,
            settings,
            config,
            start=start,
            simulator=train,
            evaluator=Evaluator(algorithm, federation, train, settings.protocol, test=test),
        )
        self.point = point  # the values of the grid's settings
        self.diverged = 0  # the round after which it was left behind
        self.train_loss = math.inf
        self._framed = set()
        self.watch = WatchInStep()

    def begin(self) -> None:
        self._begin()

    def round(self) -> None:
        self.records.append(self._round(self.rounds))

    def judge(self) -> None:
        """Score the last state, also on the training part, by which copies are compared."""
        self._finish()
        loss = self.evaluator.train_loss(self.serving)
        self.train_loss = loss if math.isfinite(loss) else math.inf

    @property
    def numbers(self) -> dict[str, Any]:
        """What `result.json` says of this copy."""
        return {
            **self.point,
            "start": self.start,
            "train_loss": None if self.diverged else self.train_loss,
            "diverged": self.diverged or None,
            "metrics": {} if self.diverged else self.metrics,
        }


class WatchInStep(Watch):
    """Nothing is noted across a wait for the other copies: the filters are common to all."""

    @contextmanager
    def noting(self) -> Iterator[None]:
        yield

    def _warn(self, text: str) -> None:
        with super().noting():  # nobody waits in here
            super()._warn(text)


class Grid:
    """Copies of a run for every start and every value of some settings."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task,
        settings: RunSettings,
        values: Mapping[str, Sequence[Any]],
        config: dict[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.values = values
        self.config = config or described(algorithm, federation.name, settings)
        if config is None:
            texts = {name: grid_text(several) for name, several in values.items()}
            self.config["settings"] |= texts
        clients = LockstepClients(
            federation.train,
            task,
            seed=settings.seed,
            chunk=settings.chunk,
            device=settings.device,
        )
        self.copies = [
            Copy(point, own, federation, task, settings, self.config, start, clients)
            for point, own in points(algorithm, values)
            for start in range(settings.starts)
        ]
        self.threads = LockstepThreads(clients.kernel, len(federation))
        self.folder: RunFolder | None = None
        self.saved = 0  # rounds that the last checkpoint holds
        self._said: list[str] = []  # warnings that belong to no single copy

    @property
    def live(self) -> list[Copy]:
        """The copies that have not diverged."""
        return [copy for copy in self.copies if not copy.diverged]

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return max(copy.rounds for copy in self.copies)

    def use(self, path: Path, *, resume: bool = False) -> None:
        """Leave files in a new folder, or go on from those of an interrupted run."""
        self.folder = RunFolder.opened(path, self.config, resume=resume)
        before = self.folder.restore(self.fingerprint) if resume else None
        if before is not None:
            self._restore(before[0], path)

    def complete(
        self,
        on_round: Callable[[Record], None] | None = None,
        on_reply: Callable[[int, int], None] | None = None,
    ) -> Run:
        """Do the rounds that are left; the copy with the lowest training loss."""
        try:
            return self._complete(on_round, on_reply)
        finally:
            self.threads.close()

    def _complete(
        self,
        on_round: Callable[[Record], None] | None,
        on_reply: Callable[[int, int], None] | None,
    ) -> Run:
        self.live[0]._on_reply = on_reply
        if self.live[0].state is None:
            try:
                self._all(Copy.begin)
            except CoterieError:
                if self.folder is not None:
                    self.folder.discard()
                raise
            self._save_checkpoint()
        while self.rounds < self.settings.rounds:
            self._all(Copy.round)
            record = self.live[0].records[-1]
            for copy in self.live:
                if not copy.watch.finite:
                    copy.diverged = copy.rounds
            self._append(record)
            if not self.live:
                raise CoterieError(
                    f"all {len(self.copies)} copies have diverged by round {self.rounds}; "
                    "a smaller lr may help"
                )
            if on_round is not None:
                on_round(record)
        self._all(Copy.judge)
        best = min(self.live, key=lambda copy: copy.train_loss)
        self._choose(best)
        return best

    @cached_property
    def fingerprint(self) -> str:
        """What a checkpoint must agree on: that of the first copy, and the grid."""
        what = [self.copies[0].fingerprint, {n: list(v) for n, v in self.values.items()}]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def _all(self, job: Callable[[Copy], None]) -> None:
        """Do something with every copy that goes on, in step."""
        live = self.live
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.threads.run([partial(job, copy) for copy in live])
        for warning in caught:
            text = str(warning.message)
            if not issubclass(warning.category, CoterieWarning):
                warnings.warn_explicit(text, warning.category, warning.filename, warning.lineno)
            elif not any(text in said for said in (self._said, *(c.warnings for c in live))):
                self._said.append(text)

    def _choose(self, best: Copy) -> None:
        """Make the folder and the outcome those of the best copy."""
        best.chosen = {
            "chosen": {**best.point, "start": best.start, "train_loss": best.train_loss},
            "copies": [copy.numbers for copy in self.copies],
        }
        reached = [copy.metrics for copy in self.live if "success" in copy.metrics]
        if reached:
            # The IFCA paper calls a trial successful when any of its copies is.
            best.metrics["success_any"] = max(each["success"] for each in reached)
            best.metrics["success_any_nearest"] = max(each["success_nearest"] for each in reached)
        best.watch.warnings += self._said
        for text in best.warnings:
            warnings.warn(text, CoterieWarning, stacklevel=3)
        if self.folder is not None:
            best.folder = self.folder
            lines = "".join(to_json(record) + "\n" for record in best.records)
            write_text(self.folder.path / "rounds.jsonl", lines)
            best._save(self.folder)
            self.folder.write_report()

    def _append(self, record: Record) -> None:
        """Keep a round of all copies; until the best is known, the first stands for the run."""
        if self.folder is None:
            return
        now = [c.records[-1] if c.rounds == self.rounds else None for c in self.copies]
        self.folder.append(now, COPIES)
        self.folder.append(record)
        if self.folder.due(self.rounds, self.settings):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        if self.folder is not None:
            self.folder.save(self._checkpoint)
            self.saved = self.rounds

    def _checkpoint(self) -> Checkpoint:
        """The states of all copies."""
        tensors: dict[str, Tensor] = {}
        notes: dict[str, Any] = {}
        for number, copy in enumerate(self.copies):
            each = copy._checkpoint()
            tensors |= {f"{number}.{name}": tensor for name, tensor in each.tensors.items()}
            notes[str(number)] = {**each.notes, "diverged": copy.diverged}
        return Checkpoint(self.rounds, self.fingerprint, tensors, notes)

    def _restore(self, checkpoint: Checkpoint, path: Path) -> None:
        rounds = checkpoint.rounds
        try:
            text = (path / COPIES).read_text(encoding="utf-8") if rounds else ""
            kept = text.splitlines()[:rounds]
            lines = [json.loads(line) for line in kept]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path / COPIES} cannot be read: {error}") from error
        if len(lines) != rounds or any(len(line) != len(self.copies) for line in lines):
            raise CheckpointError(
                f"{path / COPIES} does not hold the {rounds} rounds of all copies"
            )
        write_text(path / COPIES, "".join(line + "\n" for line in kept))
        for number, copy in enumerate(self.copies):
            lead = f"{number}."
            tensors = {
                name.removeprefix(lead): tensor
                for name, tensor in checkpoint.tensors.items()
                if name.startswith(lead)
            }
            notes = checkpoint.notes[str(number)]
            records = [line[number] for line in lines if line[number] is not None]
            copy._restore(checkpoint._replace(tensors=tensors, notes=notes), records)
            copy.diverged = notes["diverged"]
        self.saved = rounds


def points(
    algorithm: Algorithm[Any], values: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[dict[str, Any], Algorithm[Any]]]:
    """Every combination of the values, and the algorithm with it.

    >>> from coterie.algorithms.ifca import IFCA
    >>> [point for point, _ in points(IFCA(), {"k": [2, 3], "lr": [0.1]})]
    [{'k': 2, 'lr': 0.1}, {'k': 3, 'lr': 0.1}]
    """
    known = setting_names(type(algorithm))
    for name, several in values.items():
        if name not in known:
            raise SettingError(f"{type(algorithm).__name__} has no setting named {name}")
        if not several:
            raise SettingError(f"`{name}` of a grid needs at least one value")
    for combination in itertools.product(*values.values()):
        point = dict(zip(values, combination, strict=True))
        yield point, replace(algorithm, **point)  # type: ignore[type-var]
