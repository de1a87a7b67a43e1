"""Runs that are killed: at a random moment, or between the write of a file and its rename.

Every case draws an algorithm and its settings, does the run once undisturbed, and once with one to
three kills by SIGKILL; after each the run is resumed. Both folders must then say the same, to the
last bit of every tensor. The rename is found by replacing `os.replace` in the fork that is killed.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.shelves import ALGORITHMS
from coterie.tensors.digest import read_tensors
from tests.faults.command import Fork

PATIENCE = 120  # seconds for a run
DIGITS = ["rotated-digits", "clients=6", "samples=20", "rounds=4"]
SAMPLES = ["gaussian-clusters", "clients=6", "samples=40", "k=2"]
# What an algorithm is run on and with, where that is not DIGITS.
WORDS = {
    "k-fed": [*SAMPLES, "rounds=3"],
    "uifca": [*SAMPLES, "fit_rounds=2", "steps=3", "rounds=4"],
    "cluster-gan": [*SAMPLES, "steps=2", "critic_steps=1", "tries=2", "rounds=4"],
    "fpfc": [*DIGITS, "path_rounds=1", "lambdas=2"],
    "tkm": [*DIGITS[:-1], "rounds=2", "k=2"],
    "one-shot": [*DIGITS[:-1], "rounds=3", "k=2"],
}
# What changes what a folder holds: each may be in a case.
OPTIONS = (
    [],
    ["checkpoint=1"],
    ["checkpoint=2"],
    ["checkpoint=1", "validation=0.3", "early_stopping=2"],
    ["fraction=0.5", "checkpoint=1"],
    ["lost=0.3"],
    ["starts=2", "checkpoint=1"],
    ["finetune=1"],
)
TIMES = ("seconds", "start_seconds", "run_dir", "started", "command")  # what no two runs share


class Undisturbed(NamedTuple):
    """A run that nothing happened to."""

    folder: Path
    seconds: float
    renames: int  # of files


def run_words(algorithm: str, options: list[str], folder: Path) -> list[str]:
    """The command of a run."""
    given = WORDS.get(algorithm, DIGITS)
    if "starts=2" in options and algorithm not in ("ifca", "hypcluster", "fesem"):
        options = ["checkpoint=1"]
    if given[0] == SAMPLES[0]:  # there, nothing is held out, and every client is asked
        options = [each for each in options if each.startswith("checkpoint")]
    return ["run", algorithm, *given, *options, "--out", str(folder)]


def killed_at_rename(number: int, count: Path | None = None) -> Callable[[], None]:
    """Let the fork that calls this die in place of its rename number so and so, from 0.

    Their number is written to the file `count`, if there is one.
    """

    def prepare() -> None:
        real, done = os.replace, [0]

        def replace(*given: Any, **more: Any) -> None:
            if done[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            if count is not None:
                count.write_text(str(done[0]))
            real(*given, **more)

        os.replace = replace

    return prepare


@cache
def undisturbed(algorithm: str, options: tuple[str, ...], place: Path) -> Undisturbed:
    """The run of some words, once for all cases."""
    home = place / "-".join([algorithm, *options]).replace("=", "")
    home.mkdir(parents=True)
    words = run_words(algorithm, list(options), home / "run")
    run = Fork(words, killed_at_rename(-1, home / "renames"))
    run.wait(PATIENCE)
    code, _, err = run.end()
    assert code == 0, (words, err)
    return Undisturbed(home / "run", run.seconds, int((home / "renames").read_text()))


def try_kill(seed: int, place: Path) -> str:
    """Kill a run, resume it; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    names = sorted(ALGORITHMS)
    # Every algorithm in turn, each time with other options, and every second before a rename.
    algorithm, before_rename = names[seed // 2 % len(names)], seed % 2 == 0
    options = OPTIONS[(seed // 2 + seed // 2 // len(names)) % len(OPTIONS)]
    whole = undisturbed(algorithm, tuple(options), place)
    folder, done = place / "killed" / "run", []
    shutil.rmtree(folder.parent, ignore_errors=True)
    words = run_words(algorithm, options, folder)
    for kill in range(draw.choice((1, 1, 2, 3))):
        if before_rename:
            number = draw.randrange(whole.renames if kill == 0 else 8)
            run = Fork(words, killed_at_rename(number))
            run.wait(PATIENCE)
            done.append(f"rename {number}")
        else:
            moment = draw.uniform(0, whole.seconds)
            run = Fork(words)
            run.wait(moment)
            run.kill()
            done.append(f"{moment:.3f} s")
        code, _, err = run.end()
        told = f"seed {seed}: {' '.join(words)}, killed at {', '.join(done)}: "
        if code not in (0, -signal.SIGKILL):
            return f"{told}exit code {code}, {err}"
        if (folder / "config.json").exists():
            words = ["run", "--resume", str(folder)]
    run = Fork(words)
    ended = run.wait(PATIENCE)
    code, _, err = run.end()
    if not ended or code != 0:
        return f"{told}LOST exit code {code}, {err}"
    differing = differences(whole.folder, folder)
    return f"{told}DIFFERS in {', '.join(differing)}" if differing else ""


def differences(first: Path, second: Path) -> list[str]:
    """Which files of two run folders say something else, times and places aside."""
    names = {path.name for each in (first, second) for path in each.iterdir()}
    return sorted(
        name
        for name in names - {"report.html", ".lock"}
        if contents(first / name) != contents(second / name)
    )


def contents(path: Path) -> Any:
    """What a file of a run folder says, without what no two runs share."""
    if not path.exists():
        return None
    if path.suffix == ".safetensors":
        tensors, facts = read_tensors(path)
        known = {name: json.loads(facts[name]) for name in ("notes", "facts") if name in facts}
        for notes in known.values():
            notes.pop("lines", None)  # checksums of lines, which say how long a round took
        return {
            name: (str(tensor.dtype), tensor.shape, tensor.numpy().tobytes())
            for name, tensor in tensors.items()
        }, without_times(known)
    if path.suffix == ".npz":
        return {name: array.tobytes() for name, array in np.load(path).items()}
    if path.suffix == ".crc":
        return path.read_text().count("\n")
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    return without_times(json.loads(path.read_text())) if path.suffix == ".json" else "there"


def without_times(content: Any) -> Any:
    """JSON without the entries that no two runs share."""
    if isinstance(content, dict):
        return {n: without_times(each) for n, each in content.items() if n not in TIMES}
    return [without_times(each) for each in content] if isinstance(content, list) else content
