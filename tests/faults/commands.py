"""Malformed commands and settings, made of well-formed ones by a seeded generator."""

import os
import random
import re
from pathlib import Path

from coterie.shelves import ALGORITHMS, FEDERATIONS, NETWORKS
from tests.faults.command import Ended
from tests.faults.folders import whole_folder

SMALL = ["clients=6", "samples=20", "rounds=1"]
# Where a command begins: each is made wrong in a few places.
COMMANDS = [
    ["run", "ifca", "rotated-digits", *SMALL, "k=2", "--out", "OUT"],
    ["run", "ditto", "rotated-digits", *SMALL, "--json", "--out", "OUT"],
    ["run", "local", "TABLE", "client=client", "label=label", "rounds=1", "--out", "OUT"],
    ["run", "uifca", "TABLE", "client=client", "k=2", "rounds=1", "--out", "OUT"],
    ["run", "--resume", "RUN", "rounds=2"],
    [
        "compare",
        "ifca,local",
        "rotated-digits",
        *SMALL,
        "seeds=1",
        "--workers",
        "1",
        "--out",
        "OUT",
    ],
    ["report", "RUN", "--out", "OUT"],
    ["report", "RUN", "RUN", "--out", "OUT"],
    ["describe", "ifca"],
    ["data", "describe", "TABLE", "client=client"],
    ["data", "describe", "rotated-digits", "clients=6"],
    ["list"],
    ["data", "path"],
    ["data", "list"],
    ["reproduce"],
    ["deploy", "init", "OUT", "ifca", "TABLE", "client=client", "label=label"],
    ["deploy", "check", "NODE", "--app", "OUT"],
    ["deploy", "keys", "OUT", "--host", "localhost"],
    ["deploy", "keys", "OUT", "--node", "one"],
    ["deploy", "node", "NODE", "--superlink", "localhost:1", "--ca", "NODE", "--key", "NODE"],
    ["deploy", "local", "OUT", "--nodes", "1"],
    ["check", "coterie.algorithms.fedavg:FedAvg", "steps=1"],
    ["check", "k-fed", "k=2"],
    ["predict", "RUN", "TABLE", "--out", "OUT.csv"],
    ["export", "RUN", "OUT", "--client", "0"],
    ["reproduce", "ifca/table1", "--stored"],
    ["reproduce", "fpfc/table1", "--only", "FPFC", "--stored"],
    ["describe", "rotated-digits"],
    ["completion", "bash"],
    ["help", "run"],
]
NUMBERS = (
    "-1",
    "0",
    "1",
    "2",
    "1.5",
    "-0.0",
    "1e308",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "true",
    "1_000",
    "٣",
    "0x10",
    "1e2",
    "+3",
    " 3",
    "9" * 18,
    "9" * 400,
    "9" * 5000,
    "1" + "0" * 30,
    "99999999",
    "2147483648",
    "9223372036854775807",
    "1,2",
    "1,",
    ",",
    "1..9",
    "1e9",
)
TEXTS = (
    "",
    " ",
    "\x00",
    "\n",
    "\x1b[31m",
    "é",
    "\ud800",
    "x" * 5000,
    "ifca:",
    ":x",
    "a.b:c",
    "os:system",
    "coterie:IFCA",
    "../../etc",
    "~",
    "~nobody-here",
    "~nobody-here/x.csv",
    "/",
    "/dev/null",
    ".",
    "..",
    "-",
    "--",
    "=",
    "==",
    "k",
    "none",
    "auto",
    "null",
    "[]",
    "{}",
    "FIFO",
    "NPZ",
    "RUN",
    "{0}",
    "%s",
    "ifca,ifca",
    "\u202e",
    "'",
    '"',
    "`",
    "$(x)",
    "*",
    "?" * 300,
)
OPTIONS = (
    "--workers",
    "--shards",
    "--port",
    "--seeds",
    "--out",
    "--resume",
    "--format",
    "--ray",
    "--track",
    "--json",
    "--watch",
    "--full",
    "--quick",
    "--help",
    "--nonsense",
    "-x",
)
KEYS = (
    "k",
    "lr",
    "rounds",
    "clients",
    "samples",
    "seed",
    "hidden",
    "steps",
    "batch",
    "starts",
    "chunk",
    "evaluate",
    "fraction",
    "lost",
    "checkpoint",
    "per_round",
    "threads",
    "network",
    "start",
    "validation",
    "finetune",
    "attack",
    "attackers",
    "protocol",
    "device",
    "client",
    "label",
    "path",
    "schedule",
    "optimizer",
    "momentum",
    "epochs",
    "weighting",
    "aggregate",
    "screen",
    "withhold",
    "nonsense",
    "",
)


LONG = re.compile(
    "(rounds|steps|epochs|finetune|k|hidden|samples|features)=[+]?([1-9]|1_)[0-9]{3,17}"
)


def try_command(seed: int, place: Path) -> str:
    """Give a malformed command; what is wrong with how it ended, if anything."""
    run = whole_folder("ifca", 0, False)
    table = run.parent / "rows.csv"
    draw = random.Random(seed)
    words = list(draw.choice(COMMANDS))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        mutate(words, draw)
    fifo, archive = place / "pipe.csv", place / "rows.npz"
    if not fifo.exists():
        os.mkfifo(fifo)
        archive.write_bytes(b"PK\x03\x04" + bytes(100))
    node = place / "node.toml"
    node.write_text('data = "rows.csv"\n')
    names = {
        "NODE": node,
        "OUT": place / f"out{seed}",
        "RUN": run,
        "TABLE": table,
        "FIFO": fifo,
        "NPZ": archive,
    }
    for name, path in names.items():
        words = [word.replace(name, str(path)) for word in words]
    if any(LONG.fullmatch(word) for word in words) or "--watch" in words:
        return ""  # right, and goes on for as long as that takes
    ended = Ended(words)
    # That an algorithm breaks promises with these settings is no mistake of the command's.
    broken = words[0] == "check" and ended.code == 1 and "promises are kept" in ended.out
    fault = "" if broken else ended.fault
    return f"seed {seed}: {[word[:60] for word in words]}: {fault}" if fault else ""


def mutate(words: list[str], draw: random.Random) -> None:
    """Make one place of a command wrong."""
    pairs = [i for i, word in enumerate(words) if "=" in word]
    place = draw.randrange(len(words))
    kind = draw.random()
    if kind < 0.35 and words[0] in ("run", "compare", "deploy"):
        words.append(f"{draw.choice(KEYS)}={draw.choice(NUMBERS + TEXTS)}")
    elif kind < 0.55 and pairs:
        place = draw.choice(pairs)
        key = words[place].partition("=")[0]
        words[place] = f"{key}={draw.choice(NUMBERS + TEXTS)}"
    elif kind < 0.65:
        words[place] = draw.choice(TEXTS + NUMBERS)
    elif kind < 0.72:
        words.insert(place + 1, draw.choice(TEXTS + tuple(ALGORITHMS) + tuple(FEDERATIONS)))
    elif kind < 0.78 and len(words) > 1:
        del words[place]
    elif kind < 0.92:
        words += [draw.choice(OPTIONS), draw.choice(NUMBERS + TEXTS)][: draw.choice((1, 2))]
    else:
        words[place] = draw.choice((*ALGORITHMS, *FEDERATIONS, *NETWORKS))
