"""Runs on a full disk: from some moment on, no file can be written to.

The run must say so in a sentence; its folder must be whole; and once there is room, it goes on and
ends as the undisturbed run, to the last bit. In half of the cases the disk is a small tmpfs that is
filled (where this process may mount one), in the others the system refuses every write to a file.
"""

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.shelves import ALGORITHMS
from tests.faults.command import Ended, Fork, judge
from tests.faults.kills import OPTIONS, PATIENCE, differences, run_words, undisturbed

DISK = 8 * 2**20  # bytes of the small disk


def full_at_sync(number: int, fill: Callable[[], object]) -> Callable[[], None]:
    """Let the fork that calls this find its disk full after `number` files."""

    def prepare() -> None:
        real, done = os.fsync, [0]

        def fsync(file: Any) -> None:
            real(file)
            if done[0] == number:
                fill()
            done[0] += 1

        os.fsync = fsync
        if number < 0:
            fill()

    return prepare


def refuse_writes() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def fill_disk(disk: Path) -> None:
    """Take all the room of a small disk."""
    try:
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(1024))
    except OSError:
        pass


def mount_disk(disk: Path) -> bool:
    """Mount an empty small disk; whether that is possible here."""
    disk.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def try_disk(seed: int, place: Path) -> str:
    """Fill the disk under a run, then go on with it; what is wrong with that, if anything."""
    draw = random.Random(seed)
    disk = place / "disk"
    shutil.rmtree(disk, ignore_errors=True)
    mounted = seed % 2 == 1 and mount_disk(disk)
    if seed % 2 == 1 and not mounted:
        return "not tried: no disk can be mounted here"
    disk.mkdir(exist_ok=True)
    try:
        return fill_and_resume(seed, place, disk, mounted, draw)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


def fill_and_resume(seed: int, place: Path, disk: Path, mounted: bool, draw: random.Random) -> str:
    names = sorted(ALGORITHMS)
    algorithm = names[seed // 2 % len(names)]
    options = OPTIONS[(seed // 2 + seed // 2 // len(names)) % len(OPTIONS)]
    whole = undisturbed(algorithm, tuple(options), place)
    folder, number = disk / "run", draw.randrange(-1, 2 * whole.renames)
    words = run_words(algorithm, options, folder)
    kind = "small disk" if mounted else "no writes"
    fill = (lambda: fill_disk(disk)) if mounted else refuse_writes
    run = Fork(words, full_at_sync(number, fill))
    ended = run.wait(PATIENCE)
    code, _, err = run.end()
    told = f"seed {seed}: {' '.join(words)}, {kind} after {number} files: "
    if not ended:
        return f"{told}HANG"
    fault = judge(code, err)
    if fault:
        return told + fault
    (disk / "ballast").unlink(missing_ok=True)
    if (folder / "config.json").exists():
        shown = Ended(["report", str(folder), "--out", str(place / "page.html")])
        if shown.code != 0 or shown.fault:
            return f"{told}NOT WHOLE {shown.err} {shown.fault}"
        words = ["run", "--resume", str(folder)]
    again = Ended(words, PATIENCE)
    if again.code != 0:
        return f"{told}LOST {again.err} {again.fault}"
    differing = differences(whole.folder, folder)
    return f"{told}DIFFERS in {', '.join(differing)}" if differing else ""
