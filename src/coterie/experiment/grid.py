"""Grids: a run with several starts and several values of a setting, all in one pass.

Every combination of a start and of values is a copy of the run: the same federation, the same
participants and batches, other models. The copies run in lock-step (`engine/copies/lockstep.py`).
The outcome is that of the copy with the lowest validation loss, or where clients hold out nothing
the lowest training loss; true clusters are not used to choose. Of automatic values of k the
smallest is taken that is as good as the best (`selection.py`). A copy whose models are no longer
finite has diverged and is not continued.

The folder is that of the best copy, with the others' numbers in `result.json` under `copies` and
their rounds in `copies.jsonl`: one line for each round, in it one record for each copy. At the end
it is compressed (`copies.jsonl.gz`); a grid that goes on unpacks it.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.algorithm import Algorithm
from coterie.core.errors import CoterieError, CoterieWarning, SettingError
from coterie.core.sampling import Sampling
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engine.copies.lockstep import LockstepClients, LockstepThreads
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.scoring import SimulatedScorer, first_id
from coterie.experiment.checkpoint import Checkpoint, data_digest, json_digest
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.health import recorded_warnings
from coterie.experiment.initial import Initial
from coterie.experiment.participants import OnReply
from coterie.experiment.run import OnRound, Run
from coterie.experiment.run_result import run_config, write_outcome
from coterie.experiment.selection import (
    STARTED_TWICE,
    Candidate,
    check_automatic,
    choose_value,
    values_for,
)
from coterie.experiment.settings import AutomaticValues, RunSettings, grid_text, setting_names
from coterie.files import parse_json
from coterie.registry import algorithm_name
from coterie.tensors.threads import adaptive_threads

COPIES = "copies.jsonl"

Owner = TypeVar("Owner")  # of settings: an algorithm or a network


@dataclass
class Copy:
    """One of the runs of a grid."""

    point: dict[str, Any]  # the values of the grid's settings
    start: int  # which of the independent starts
    run: Run
    task: int = 0  # which of the grid's tasks
    diverged: int = 0  # the round after which it was left behind; 0: it goes on
    train_loss: float = math.inf

    def evaluate(self) -> None:
        """Score the last state, also on the training part, by which copies are compared."""
        self.run.finish()
        loss = self.run.evaluator.train_loss(self.run.serving)
        self.train_loss = loss if math.isfinite(loss) else math.inf

    @property
    def validation_loss(self) -> float | None:
        """The lowest validation loss of its rounds; None without a validation part."""
        best = self.run.training.stopping.best
        return None if best is None else best.loss

    @property
    def badness(self) -> float:
        """What copies are compared by: the validation loss, or without one that of training."""
        return self.train_loss if self.validation_loss is None else self.validation_loss

    def held_out(self, clients: int) -> tuple[float, Tensor]:
        """The validation loss of the state that is kept, and that of each of so many clients."""
        validation = self.run.evaluation.validation
        assert validation is not None
        each = torch.full((clients,), math.nan, dtype=torch.float64)
        if "loss" in validation.summary.clients:  # else it is withheld
            each[validation.serving.ids] = validation.summary.clients["loss"].double()
        return validation.summary.metrics["loss"], each

    @property
    def losses(self) -> dict[str, float | None]:
        """The losses that tell how good this copy is; None of one that has diverged."""
        found = {"train_loss": self.train_loss}
        if self.validation_loss is not None:
            found = {"validation_loss": self.validation_loss, **found}
        return dict.fromkeys(found) if self.diverged else dict(found)

    @property
    def result(self) -> dict[str, Any]:
        """What `result.json` says of this copy."""
        kept = self.run.best_round
        return {
            **self.point,
            "start": self.start,
            **({} if kept is None else {"rounds": self.run.rounds, "best_round": kept}),
            **self.losses,
            "diverged": self.diverged or None,
            "metrics": {} if self.diverged else self.run.metrics,
        }


class Grid:
    """Copies of a run for every start and every value of some settings."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task | Sequence[tuple[dict[str, Any], Task]],
        settings: RunSettings,
        values: Mapping[str, Sequence[Any]],
        config: dict[str, Any] | None = None,
        *,
        initial: Initial | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        """`task` is that of all copies, or one for each combination of the network's values."""
        if settings.attack != "none":
            raise SettingError(
                "`attack` must be none where several starts or values run side by side, got "
                f"{settings.attack}"
            )
        self.settings = settings
        self.initial = initial
        self.sampling = sampling
        # The setting of which the smallest good value is to be found; empty: the best is taken.
        self.automatic = next(
            (name for name, each in values.items() if isinstance(each, AutomaticValues)), ""
        )
        if self.automatic:
            check_automatic(algorithm, federation, settings, self.automatic)
        self.values = values
        texts = {name: grid_text(several) for name, several in values.items()}
        whole = {**asdict(algorithm), **asdict(settings), **texts}  # type: ignore[call-overload]
        self.config = config or run_config(algorithm_name(algorithm), federation.name, whole)
        tasks = task if isinstance(task, Sequence) else [({}, task)]
        own = {name: each for name, each in values.items() if name not in tasks[0][0]}
        own = {name: values_for(each, len(federation)) for name, each in own.items()}
        self.copies: list[Copy] = []
        self.threads: list[LockstepThreads] = []  # one for each task
        for number, (network_point, each) in enumerate(tasks):
            clients = LockstepClients(
                federation.train,
                each,
                seed=settings.seed,
                chunk=settings.chunk,
                device=settings.device,
            )
            self.threads.append(LockstepThreads(clients.kernel, len(federation)))
            for point, method in grid_points(algorithm, own):
                for start in range(self._starts(point)):
                    run = self._run_in_step(method, federation, each, start, clients)
                    whole_point = {name: {**network_point, **point}[name] for name in values}
                    self.copies.append(Copy(whole_point, start, run, number))
        self.folder: RunFolder | None = None
        self.selection: dict[str, Any] = {}  # how the value was found, where that was asked
        self.warnings: list[str] = []  # those that belong to no single copy

    def _starts(self, point: Mapping[str, Any]) -> int:
        """How many starts there are of one combination of values."""
        wanted, alike = self.settings.starts, self.initial is not None
        searched = point.get(self.automatic) in STARTED_TWICE and not alike
        return max(2, wanted) if searched else wanted

    def _run_in_step(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task,
        start: int,
        clients: LockstepClients,
    ) -> Run:
        """A run whose work on clients waits for that of the other copies."""
        train = clients.train()
        others = {
            part: clients.judge(part, samples, train, first_id(federation, part))
            for part, samples in federation.parts.items()
            if part != "train"
        }
        scorer = SimulatedScorer(federation, train, others)
        return Run(
            algorithm,
            federation,
            task,
            self.settings,
            self.config,
            start=start,
            population=train,
            evaluator=Evaluator(algorithm, federation, scorer, self.settings.protocol),
            lockstep=True,
            initial=self.initial,
            sampling=self.sampling,
        )

    @property
    def live(self) -> list[Copy]:
        """The copies that have not diverged."""
        return [copy for copy in self.copies if not copy.diverged]

    @property
    def going(self) -> list[Copy]:
        """The copies that have rounds left to do."""
        return [copy for copy in self.live if not copy.run.training.over]

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return max(copy.run.rounds for copy in self.copies)

    def use(self, path: Path, *, resume: bool = False) -> RunFolder:
        """Leave files in a new folder, or go on from those of an earlier run."""
        folder = RunFolder.open(path, self.config, resume=resume)
        federation = self.copies[0].run.federation
        with folder.unlocked_after_error():
            folder.history.kept = COPIES
            folder.data = data_digest(federation)
            if resume:
                folder.history.unpack(COPIES)
                complete_rounds(folder)
            before = folder.restore(self.fingerprint_with, self.config) if resume else None
            folder.write_schema(federation)
            if before is not None:
                self._restore(before[0], folder)
        self.folder = folder
        return folder

    def complete(self, on_round: OnRound | None = None, on_reply: OnReply | None = None) -> Run:
        """Do the rounds that are left; the best copy.

        `on_round` is called with the first copy that goes on, which can stop all.
        """
        first = self.live[0].run
        first.training.participants.on_reply = on_reply
        first.stopped, error = False, None
        locked = nullcontext() if self.folder is None else self.folder.locked()
        with locked, closing_all(self.threads), adaptive_threads(self.settings.threads):
            if first.state is None:
                self._begin()
            if self.folder is not None and self.going:
                self.folder.remove_outcome()
            while self.going and not first.stopped:
                first = self._do_round()
                error = first.tell(on_round, first.records[-1])
            try:
                return self._end()
            finally:
                if error is not None:
                    raise error

    def _begin(self) -> None:
        try:
            self._all(lambda copy: copy.run.training.begin())
        except CoterieError:
            if self.folder is not None:
                self.folder.discard()
            raise
        self._save_checkpoint()

    def _do_round(self) -> Run:
        """Do a round of all copies that go on; the first of these that is left."""
        going = self.going
        self._all(lambda copy: copy.run.training.do_round(), going)
        record = going[0].run.records[-1]
        for copy in going:
            if not copy.run.training.health.finite:
                copy.diverged = copy.run.rounds
        self._append(record)
        if not self.live:
            if self.folder is not None:
                self.folder.write_report()
            raise CoterieError(
                f"all {len(self.copies)} copies have diverged by round {self.rounds}; "
                "a smaller lr may help"
            )
        return next((copy.run for copy in going if not copy.diverged), going[0].run)

    def _end(self) -> Run:
        if self.folder is not None and self.folder.rounds_saved < self.rounds:
            self._save_checkpoint()
        self._all(Copy.evaluate)
        best = self._best()
        self._choose(best)
        return best.run

    def _best(self) -> Copy:
        """The copy that is kept: the best, or of automatic values the smallest that is as good."""
        ranked = sorted(self.live, key=lambda copy: copy.badness)
        validated = all(copy.validation_loss is not None for copy in ranked)
        name = next(iter(self.values)) if len(self.values) == 1 else self.automatic
        if not (name and validated):
            return ranked[0]
        found: dict[float | str, Copy] = {}  # the best copy with each value
        for copy in ranked:
            found.setdefault(copy.point[name], copy)
        values = [value for value in self.values[name] if value in found]
        if not any(isinstance(value, str) for value in values):
            values.sort()
        sizes = found[values[0]].run.evaluator.scorer.sizes("validation")
        known = [Candidate(value, *found[value].held_out(len(sizes))) for value in values]
        chosen = choose_value(known, sizes, smallest=name == self.automatic)
        self.selection = chosen.result(name, known)
        return found[chosen.candidate.value]

    @cached_property
    def fingerprint(self) -> str:
        """What a checkpoint must agree on: that of the first copy, and the grid."""
        return self.fingerprint_with()

    def fingerprint_with(self, rounds: int | None = None) -> str:
        """The fingerprint, or that of earlier versions, with the number of rounds."""
        first = self.copies[0].run.fingerprint_with(rounds)
        return json_digest([first, {n: list(v) for n, v in self.values.items()}])

    def _all(self, job: Callable[[Copy], object], copies: Sequence[Copy] = ()) -> None:
        """Do something with some copies in step, or with all that have not diverged."""
        live, known = copies or self.live, len(self.warnings)

        def record(text: str) -> bool:
            """What every copy says is said once."""
            new = text not in self.warnings
            self.warnings += [text] if new else []
            return new

        try:
            with recorded_warnings(record):
                for number, threads in enumerate(self.threads):
                    threads.run([partial(job, copy) for copy in live if copy.task == number])
        except Exception:
            if self.folder is not None:
                self.folder.keep_warnings(self.fingerprint, self.warnings[known:])
            raise

    def _choose(self, best: Copy) -> None:
        """Make the folder and the outcome those of the best copy."""
        run = best.run
        run.chosen = {
            "chosen": {**best.point, "start": best.start, **best.losses},
            **({"selection": self.selection} if self.selection else {}),
            "copies": [copy.result for copy in self.copies],
        }
        run.training.outcome.add_quality()
        reached = [copy.run.metrics for copy in self.live if "success" in copy.run.metrics]
        if reached:
            # The IFCA paper calls a trial successful when any of its copies is.
            run.metrics["success_any"] = max(each["success"] for each in reached)
            run.metrics["success_any_nearest"] = max(each["success_nearest"] for each in reached)
        for text in run.warnings:
            warnings.warn(text, CoterieWarning, stacklevel=2)
        run.warnings.extend(self.warnings)
        if self.folder is not None:
            run.folder = self.folder
            self.folder.history.replace(run.records)
            write_outcome(run, self.folder)
            self.folder.write_report()
            self.folder.history.pack(COPIES)

    def _append(self, record: Record) -> None:
        """Keep a round of all copies; until the best is known, the first stands for the run."""
        if self.folder is None:
            return
        runs = [copy.run for copy in self.copies]
        now = [run.records[-1] if run.rounds == self.rounds else None for run in runs]
        self.folder.history.append(now, COPIES)
        self.folder.history.append(record)
        if self.folder.due(self.rounds, self.settings):
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        if self.folder is not None:
            self.folder.save(self._checkpoint)

    def _checkpoint(self) -> Checkpoint:
        """The states of all copies."""
        tensors: dict[str, Tensor] = {}
        notes: dict[str, Any] = {"warnings": self.warnings}
        for number, copy in enumerate(self.copies):
            each = copy.run.training.to_checkpoint(self.fingerprint)
            tensors |= {f"{number}.{name}": tensor for name, tensor in each.tensors.items()}
            notes[str(number)] = {**each.notes, "diverged": copy.diverged}
        return Checkpoint(self.rounds, self.fingerprint, tensors, notes)

    def _restore(self, checkpoint: Checkpoint, folder: RunFolder) -> None:
        def is_record(_: int, line: Any) -> bool:
            return len(line) == len(self.copies)

        lines = folder.cut_lines(COPIES, checkpoint, "of all copies", is_record)
        self.warnings = checkpoint.notes["warnings"]
        for number, copy in enumerate(self.copies):
            lead = f"{number}."
            tensors = {
                name.removeprefix(lead): tensor
                for name, tensor in checkpoint.tensors.items()
                if name.startswith(lead)
            }
            notes = checkpoint.notes[str(number)]
            records = [line[number] for line in lines if line[number] is not None]
            own = checkpoint._replace(tensors=tensors, notes=notes)
            copy.run.training.restore(own, records)
            copy.diverged = notes["diverged"]


def complete_rounds(folder: RunFolder) -> None:
    """Let rounds.jsonl have all rounds again, where the best copy had ended before others."""
    found: list[Record] = []
    done = 0
    # What cannot be read is left as it is: whoever reads it next says what is wrong.
    with suppress(OSError, ValueError, TypeError, StopIteration):
        done = len((folder.path / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
        for line in (folder.path / COPIES).read_text(encoding="utf-8").splitlines():
            found.append(next(record for record in parse_json(line) if record is not None))
    if 0 < done < len(found):
        folder.history.replace(found)


@contextmanager
def closing_all(threads: Sequence[LockstepThreads]) -> Iterator[None]:
    """Close the threads at the end."""
    try:
        yield
    finally:
        for each in threads:
            each.close()


def grid_points(
    algorithm: Owner, values: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[dict[str, Any], Owner]]:
    """Every combination of the values, and the algorithm, or the network, with it.

    >>> from coterie.algorithms.ifca import IFCA
    >>> [point for point, _ in grid_points(IFCA(), {"k": [2, 3], "lr": [0.1]})]
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
