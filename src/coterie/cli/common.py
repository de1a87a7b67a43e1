"""What several commands share: exit codes, new run folders, and the options of sweeps."""

from __future__ import annotations

import argparse
import itertools
from datetime import datetime
from pathlib import Path

from coterie.core.errors import CoterieError

MISTAKE = 2  # exit code for wrong input
INTERRUPTED = 130  # exit code after Ctrl-C


def new_folder(algorithm: str, federation: str) -> Path:
    """A new folder in runs/, named by time and what is run; no other run can have the same one."""
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{algorithm}-{federation}"
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
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"the folder of the runs (default: {folder}); what is there is not run again",
    )
    command.add_argument(
        "--workers", type=int, default=0, metavar="N", help="runs at a time (default: one per core)"
    )
