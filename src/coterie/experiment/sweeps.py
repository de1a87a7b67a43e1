"""Sweeps: many runs side by side, each in a process of its own with its share of the cores.

Where there are more runs than processes at a time, these are forked (`forked_runs.py`).
A run lives in its own folder. One that is finished there is not run again, one that was interrupted
goes on from its checkpoint; so a sweep is resumed by starting it again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import CoterieError, SettingError
from coterie.experiment.folder import RunFolder
from coterie.experiment.forked_runs import CAN_FORK, ForkServer, RunProcess, python_command
from coterie.experiment.plan import complete_settings, make_plan
from coterie.files import changed_files, read_json
from coterie.report.template import share_library
from coterie.tensors.threads import available_cores

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0  # for a run to finish its round and leave a checkpoint
# Threads of the numerical libraries; two processes that both use all cores slow each other down.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Tell = Callable[[int, int, int, int], None]  # rounds done, rounds in all, runs done, runs in all


@dataclass(frozen=True)
class Job:
    """One run of a sweep: the words of `coterie run`, and the folder it lives in."""

    words: tuple[str, ...]
    folder: Path

    @property
    def result(self) -> dict[str, Any] | None:
        """The outcome, if all rounds are done, or training has ended before."""
        try:
            if changed_files(self.folder, ["result.json"]):
                return None
            result: dict[str, Any] | None = read_json(self.folder / "result.json")
            if result is None or result.get("ending"):
                return result
            rounds = RunFolder(self.folder).config["settings"]["rounds"]
            return None if result["rounds"] < rounds else result
        except (CoterieError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # damaged: the run that goes on says what, or writes it anew

    @property
    def rounds_done(self) -> int:
        """Rounds that the folder holds."""
        path = self.folder / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


class SweepOutcome(NamedTuple):
    """What became of the jobs of a sweep."""

    results: list[dict[str, Any] | None]  # in their order; None: it failed
    failure: str  # how many failed, and why; empty if none did


class SweepProcess:
    """A process that does a job; its output goes to a log file beside the job's folder."""

    def __init__(self, job: Job, threads: dict[str, str], server: ForkServer | None) -> None:
        self.job = job
        self.log = job.folder.with_name(f"{job.folder.name}.log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        began = (job.folder / "config.json").exists()
        place = ["--resume" if began else "--out", str(job.folder)]
        words = ["run", *([] if began else job.words), *place, "--json"]
        self.process: RunProcess
        if server is not None:
            self.process = server.start(words, self.log)
            return
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*python_command("coterie"), *words],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **threads},
            )

    def end(self) -> None:
        """Wait until it has left its checkpoint; after a while, terminate it."""
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # As where a shell starts background jobs that ignore Ctrl-C.
            self.process.terminate()
            self.process.wait()

    @property
    def last_error(self) -> str:
        """The last line that the process wrote, without the program's name."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("coterie: ") if lines else "it was killed"


def thread_limits(processes: int) -> dict[str, str]:
    """The environment of each of several processes that compute at the same time: its threads.

    No more than `OMP_NUM_THREADS` asks for.
    """
    share, wish = max(1, available_cores() // processes), os.environ.get("OMP_NUM_THREADS", "")
    return dict.fromkeys(THREADS, str(min(share, int(wish)) if wish.isdecimal() else share))


def run_jobs(jobs: Sequence[Job], *, workers: int = 0, tell: Tell | None = None) -> SweepOutcome:
    """Do all jobs, `workers` at a time (0: one for each core).

    Every job is checked before the first one begins. A job that fails does not stop the others; an
    error is raised only if all fail. Ctrl-C lets every run leave its checkpoint.
    """
    totals = {job: check_job(job) for job in jobs}
    waiting = [job for job in jobs if job.result is None]
    # Only runs that go on are looked at again: the files of the others do not change.
    rounds = {job: total if job.result else job.rounds_done for job, total in totals.items()}
    for place in {job.folder.parent for job in waiting}:
        share_library(place)
    workers = min(workers or available_cores(), max(1, len(waiting)))
    threads = thread_limits(workers)
    server = ForkServer(threads) if CAN_FORK and len(waiting) > workers else None
    running: list[SweepProcess] = []
    failed: list[SweepProcess] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(SweepProcess(waiting.pop(0), threads, server))
            if server is None:
                time.sleep(POLL_SECONDS)
            else:
                server.listen(POLL_SECONDS)
            rounds |= {worker.job: worker.job.rounds_done for worker in running}
            ended = [worker for worker in running if worker.process.poll() not in (None, 0)]
            # A run that is no longer finite says so by its exit code, and has an outcome.
            failed += [worker for worker in ended if worker.job.result is None]
            running = [worker for worker in running if worker.process.poll() is None]
            if tell is not None:
                finished = len(jobs) - len(waiting) - len(running) - len(failed)
                tell(sum(rounds.values()), sum(totals.values()), finished, len(jobs))
    finally:
        for worker in running:
            worker.process.send_signal(signal.SIGINT)
        for worker in running:
            worker.end()
        if server is not None:
            server.close()
    failure = failure_text(failed)
    if failed:
        failure = f"{len(failed)} of {len(jobs)} runs failed: {failure}"
    if len(failed) == len(jobs):
        raise CoterieError(failure)
    gone = {worker.job for worker in failed}
    return SweepOutcome([None if job in gone else job.result for job in jobs], failure)


def failure_text(failed: Sequence[SweepProcess]) -> str:
    """What went wrong in which runs; an error that several have is listed once."""
    by_text: dict[str, list[str]] = {}
    for worker in failed:
        by_text.setdefault(worker.last_error, []).append(" ".join(worker.job.words))
    return "; ".join(
        f"{first}{f' and {len(more)} more' if more else ''}: {error}"
        for error, (first, *more) in by_text.items()
    )


def check_job(job: Job) -> int:
    """The rounds of a job; refuse words that cannot be run, and a folder with another run."""
    plan = make_plan(list(job.words))
    if (job.folder / "config.json").exists():
        config = RunFolder.existing(job.folder).config
        names = (config.get("algorithm"), config.get("federation"))
        if names != (plan.algorithm_name, plan.federation_name) or (
            complete_settings(*names, config.get("settings", {})) != plan.values()
        ):
            raise SettingError(
                f"{job.folder} holds a run with other settings; give another folder with --out"
            )
    return plan.settings.rounds
