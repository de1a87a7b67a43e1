"""What several commands share: new run folders, and sweeps with their options."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError, SettingError
from coterie.core.names import file_name

if TYPE_CHECKING:
    from coterie.experiment.sweeps import Job, SweepOutcome

MOST_WORKERS = 256  # more processes at a time exhaust the memory of any machine


def new_folder(algorithm: str, federation: str) -> Path:
    """A new folder in runs/, named by time and what is run; no other run can have the same one."""
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{file_name(algorithm)}-{file_name(federation)}"
    for count in itertools.count(1):
        path = Path("runs") / (stem if count == 1 else f"{stem}-{count}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise CoterieError(
                f"cannot write to the run folder {path}: {error.strerror}"
            ) from error
    raise AssertionError("counting does not end")


def add_sweep_options(command: argparse.ArgumentParser, folder: str) -> None:
    """Options of the commands that do many runs."""
    add, workers = command.add_argument, "runs at a time (default: one per core)"
    runs = f"the folder of the runs (default: {folder}); what is there is not run again"
    add("--out", type=Path, metavar="DIR", help=runs)
    add("--workers", type=int, default=0, metavar="N", help=workers)


def run_sweep(title: str, jobs: Sequence[Job], workers: int, advice: str) -> SweepOutcome:
    """Do the jobs and show how far they are; after Ctrl-C, say how the sweep is continued."""
    from coterie.cli.progress_bar import sweep_progress
    from coterie.experiment.sweeps import run_jobs

    if not 0 <= workers <= MOST_WORKERS:
        raise SettingError(f"--workers must be from 0 to {MOST_WORKERS}, got {workers}")
    try:
        with sweep_progress(title) as tell:
            return run_jobs(jobs, workers=workers, tell=tell)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(advice) from None
