"""Damaged run folders: `run --resume` and `report` on them."""

import random
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

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
        for outcome in ("result.json", "clients.json", "report.html", "pictures.json"):
            (folder / outcome).unlink(missing_ok=True)
    return folder


def try_folder(seed: int, place: Path, names: Sequence[str] = tuple(RUNS)) -> str:
    """Damage one file of a folder and use it; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    name = draw.choice(sorted(names))
    whole = whole_folder(name, 0, draw.random() < 0.3)
    other = whole_folder(draw.choice(sorted(names)), 1, False)
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    files = sorted(path.name for path in folder.iterdir() if path.name != "report.html")
    file = draw.choice(files)
    done = damage(folder / file, other / file, draw)
    if draw.random() < 0.5:
        words = ["report", str(folder)]
    else:
        words = ["run", "--resume", str(folder), *draw.choice([[], [], ["rounds=5"]])]
    ended = Ended(words)
    return f"seed {seed}: {words[0]} of {name}, {done}: {ended.fault}" if ended.fault else ""
