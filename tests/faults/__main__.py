"""`make faults`: the whole fault suite, with a line of figures for each part of it.

    python -m tests.faults [PART=CASES ...] [seed=N]

Exit code 1 if anything was wrong; each fault is printed with its seed, by which it comes again.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import commands, folders, replies, servers, tables

CASES = {
    "folders": 1000,
    "commands": 1000,
    "tables": 1000,
    "replies": 300,
    "servers": 300,
    "maps": 20,
}


def main(words: list[str]) -> int:
    given = {name: int(number) for name, number in (word.split("=") for word in words)}
    first = given.pop("seed", 0)
    place = Path(tempfile.mkdtemp(prefix="coterie-faults-"))
    os.chdir(place)
    whole = folders.whole_folder("ifca", 0, False)
    parts: dict[str, Callable[[int], str]] = {
        "folders": lambda seed: folders.try_folder(seed, place),
        "commands": lambda seed: commands.try_command(
            seed, place, whole, whole.parent / "rows.csv"
        ),
        "tables": lambda seed: tables.try_table(seed, place),
        "replies": lambda seed: replies.try_replies(seed, place),
        "servers": lambda seed: servers.try_server(seed, place),
        "maps": lambda seed: servers.try_map(seed, place),
    }
    wrong = 0
    print("| part | seeds | faults | longest case |\n| --- | --- | --- | --- |", flush=True)
    for part, cases in (given or CASES).items():
        faults, longest = 0, 0.0
        for seed in range(first, first + cases):
            began = time.monotonic()
            fault = parts[part](seed)
            longest = max(longest, time.monotonic() - began)
            faults += bool(fault)
            if fault:
                print(f"{part}: {fault}", file=sys.stderr, flush=True)
        wrong += faults
        seeds = f"{first} to {first + cases - 1}"
        print(f"| {part} | {seeds} | {faults} | {longest:.1f} s |", flush=True)
    for folder in (place, *folders.homes):
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
