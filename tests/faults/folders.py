"""Damaged run folders, and every command that reads one."""

import random
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from coterie.experiment.folder import OUTCOME
from tests.faults.command import Ended
from tests.faults.damage import damage

DIGITS = ["rotated-digits", "clients=6", "samples=20"]
TABLE = "client,a,b,label\n" + "".join(
    f"c{i % 6},{(i * 7) % 11},{(i * i) % 13},{'yes' if i % 3 else 'no'}\n" for i in range(96)
)
# What is run, with and without memory of clients, samples that are clustered, and several starts.
RUNS = {
    "ifca": ["ifca", *DIGITS, "k=2"],
    "grid": ["ifca", *DIGITS, "k=2", "starts=2"],
    "ditto": ["ditto", *DIGITS],
    "fpfc": ["fpfc", *DIGITS, "path_rounds=1", "lambdas=2"],
    "local": ["local", *DIGITS],
    "table": ["ifca", "TABLE", "client=client", "label=label", "k=2"],
    "stopping": ["ifca", *DIGITS, "k=2", "validation=0.3", "early_stopping=1"],
    "finetune": ["fedavg", *DIGITS, "finetune=1", "validation=0.2"],
    "attack": ["ifca", *DIGITS, "k=2", "attack=boosted", "attackers=0.2", "screen=norm"],
    "auto": ["ifca", *DIGITS, "k=1,2", "validation=0.3"],
    "local-table": ["local", "TABLE", "client=client", "label=label"],
    "uifca": ["uifca", "TABLE", "client=client", "k=2"],
}

homes: list[Path] = []  # of the folders that were made


@cache
def whole_folder(name: str, seed: int, unfinished: bool) -> Path:
    """The folder of a run that ended, or that has rounds left."""
    home = Path(mkdtemp(prefix="coterie-faults-"))
    homes.append(home)
    table = home / "rows.csv"
    table.write_text(TABLE)
    words = [str(table) if word == "TABLE" else word for word in RUNS[name]]
    folder = home / "run"
    ended = Ended(["run", *words, "rounds=4", f"seed={seed}", "checkpoint=1", "--out", str(folder)])
    assert ended.code == 0, (ended.err, ended.fault)
    if unfinished:
        for outcome in (*OUTCOME, "outcome.crc"):
            (folder / outcome).unlink(missing_ok=True)
    return folder


def try_folder(seed: int, place: Path, names: Sequence[str] = tuple(RUNS)) -> str:
    """Damage one file of a folder and use it; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    name = draw.choice(sorted(names))
    unfinished = draw.random() < 0.3
    whole = whole_folder(name, 0, unfinished)
    other = whole_folder(draw.choice(sorted(names)), 1, False)
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    files = sorted(path.name for path in folder.iterdir() if path.name != "report.html")
    file = draw.choice(files)
    done = damage(folder / file, other / file, draw)
    before = contents(whole / file)
    words = command_on(folder, whole, place, draw)
    ended = Ended(words)
    fault = ended.fault
    noticed = ("checkpoint.safetensors", "models.safetensors")
    told = ended.code != 0 or words[0] != "report" or file in noticed
    if not (fault or told or unfinished or contents(folder / file) == before):
        fault = "PASSED UNNOTICED"
    return f"seed {seed}: {words[0]} of {name}, {done}: {fault}" if fault else ""


def contents(path: Path) -> bytes | None:
    """What a plain file holds; None for anything else."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def command_on(folder: Path, whole: Path, place: Path, draw: random.Random) -> list[str]:
    """A command that reads a run folder."""
    rows = whole.parent / "rows.csv"
    out = place / "out"
    shutil.rmtree(out, ignore_errors=True)
    commands = (
        ["report", str(folder)],
        ["report", str(folder)],
        ["report", str(folder), str(whole), "--out", str(place / "page.html")],
        ["run", "--resume", str(folder)],
        ["run", "--resume", str(folder), "rounds=5"],
        ["predict", str(folder), str(rows)],
        ["predict", str(folder), str(rows), "--out", str(place / "scored.csv")],
        ["export", str(folder), str(out)],
    )
    return list(draw.choice(commands))
