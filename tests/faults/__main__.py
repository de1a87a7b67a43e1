"""`make faults`: the whole fault suite, with a line of figures for each part of it.

    python -m tests.faults [PART=CASES ...] [seed=N]

Every command has a process of its own, which is forked from this one. Exit code 1 if anything was
wrong; each fault is printed with its seed, by which it comes again.
"""

import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coterie.cli import fork_server
from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS
from tests.faults import commands, disks, files, folders, kills, shared, tables
from tests.faults.command import Ended

# Last are those that start threads in this process, after which it should fork no more.
CASES = {
    "kills": 200,  # with one to three kills each
    "disks": 60,
    "shared": 40,
    "folders": 1000,
    "commands": 1000,
    "tables": 700,
    "files": 300,
    "replies": 300,
    "servers": 300,
    "maps": 20,
    "ends": 80,  # and these strike a deployment of processes: half a minute each
    "nodes": 70,
    "power": 10,
}
IMPORTED = ("coterie.experiment.run", "coterie.cli.progress_bar", "coterie.report.pages")


def import_all() -> None:
    """Import what most commands do, so that a fork need not."""
    for name in (*fork_server.ALSO_IMPORTED, *IMPORTED):
        importlib.import_module(name)
    for shelf in (ALGORITHMS, FEDERATIONS, NETWORKS):
        list(shelf.values())


def try_replies(seed: int, place: Path) -> str:
    from tests.faults import replies  # imports Flower

    return replies.try_replies(seed, place)


def try_server(seed: int, place: Path) -> str:
    from tests.faults import servers

    return servers.try_server(seed, place)


def try_map(seed: int, place: Path) -> str:
    from tests.faults import servers

    return servers.try_map(seed, place)


deployed: list[Any] = []  # the deployment of a part, once it is needed


def on_a_deployment(part: str, seed: int, place: Path) -> str:
    """A case of a part that strikes a deployment, which stands until the part is over."""
    from tests.faults import processes  # imports Flower

    if not deployed:
        deployed.append(processes.Nemesis(seed, lambda text: print(text, file=sys.stderr)))
    try:
        return processes.PARTS[part](deployed[0], seed)
    except AssertionError as error:
        deployed.pop().close()
        return f"seed {seed}: {error}"


def main(words: list[str]) -> int:
    given = {name: int(number) for name, number in (word.split("=") for word in words)}
    first = given.pop("seed", 0)
    place = Path(tempfile.mkdtemp(prefix="coterie-faults-"))
    os.chdir(place)
    import_all()
    Ended.forked = True
    parts: dict[str, Callable[[int, Path], str]] = {
        "kills": kills.try_kill,
        "disks": disks.try_disk,
        "shared": shared.try_shared,
        "folders": folders.try_folder,
        "commands": commands.try_command,
        "tables": tables.try_table,
        "files": files.try_file,
        "replies": try_replies,
        "servers": try_server,
        "maps": try_map,
        **{part: partial(on_a_deployment, part) for part in ("ends", "nodes", "power")},
    }
    wrong = 0
    print("| part | seeds | faults | longest case |\n| --- | --- | --- | --- |", flush=True)
    try:
        for part, cases in (given or CASES).items():
            faults, longest = 0, 0.0
            for seed in range(first, first + cases):
                began = time.monotonic()
                fault = parts[part](seed, place)
                longest = max(longest, time.monotonic() - began)
                faults += bool(fault)
                if fault:
                    print(f"{part}: {fault}", file=sys.stderr, flush=True)
            wrong += faults
            if deployed:
                deployed.pop().close()
            seeds = f"{first} to {first + cases - 1}"
            print(f"| {part} | {seeds} | {faults} | {longest:.1f} s |", flush=True)
    finally:
        if deployed:
            deployed.pop().close()
        os.chdir("/")
        for folder in (place, *folders.homes):
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
