"""Malformed tables: damaged files, and cells, columns and headers that no table should have."""

import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from tests.faults.command import Ended
from tests.faults.damage import damage
from tests.faults.folders import TABLE

CELLS = (
    *("", " ", "NA", "nan", "inf", "-inf", "1e999", "1e308", "9" * 400, "9" * 5000, "0x1f", "-0"),
    *("\x00", "é", "\u202e", '"', '""', "'", "yes", "None", "1,5", "1 000", "2024-01-01", "true"),
    *("x" * 100_000, "=1+1", "\t", ";", "[1]", "\x1b[31m"),
)
ENDINGS = ("csv", "csv", "csv", "tsv", "parquet", "feather", "npz", "npz", "folder")
SETTINGS = (
    *(
        "client=client",
        "label=label",
        "label=a",
        "client=a",
        "label=client",
        "k=3",
        "min_samples=9",
    ),
    *(
        "target=regression",
        "drop=a",
        "test=0.5",
        "client=",
        "label=",
        "validation=0.3",
        "drop=nobody",
    ),
)


def write_malformed(place: Path, draw: random.Random) -> Path:
    """A table in some form, with some cells or bytes of it wrong."""
    rows = [line.split(",") for line in TABLE.splitlines()]
    for _ in range(draw.choice((0, 1, 1, 3, 30))):
        row = draw.choice(rows)
        if row:
            row[draw.randrange(len(row))] = draw.choice(CELLS)
        if draw.random() < 0.2:
            row.append(draw.choice(CELLS))
        if draw.random() < 0.1:
            row.clear()
    if draw.random() < 0.1:
        rows = rows[: draw.randrange(3)]
    ending = draw.choice(ENDINGS)
    text = "\n".join(("\t" if ending == "tsv" else ",").join(row) for row in rows) + "\n"
    path = place / f"rows.{ending}"
    if ending in ("parquet", "feather"):
        write_columns(path, rows, draw)
    elif ending in ("npz", "folder"):
        path = write_folder(place, ending, draw, text)
    else:
        path.write_text(text, errors="surrogatepass")
    if draw.random() < 0.5:
        file = draw.choice(sorted(path.iterdir())) if path.is_dir() else path
        damage(file, file, draw)
    return path


def write_columns(path: Path, rows: list[list[str]], draw: random.Random) -> None:
    whole = [row for row in rows[1:] if len(row) == 4] or [["c", "1", "2", "yes"]]
    columns = [list(column) for column in zip(*whole, strict=True)]
    kinds = (
        pyarrow.array(columns[0]),
        pyarrow.array([draw.choice((1, None, float("nan"), 2.5)) for _ in whole]),
        pyarrow.array([draw.choice(([1], [], None)) for _ in whole]),
        pyarrow.array([{"a": 1} for _ in whole]),
        pyarrow.array([b"\xff" for _ in whole]),
        pyarrow.nulls(len(whole)),
        pyarrow.array([2**63 - 1 for _ in whole]),
        pyarrow.array(columns[3]),
    )
    table = pyarrow.table({n: draw.choice(kinds) for n in ("client", "a", "b", "label")})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path)


def write_folder(place: Path, ending: str, draw: random.Random, text: str) -> Path:
    folder = place / "clients"
    folder.mkdir()
    for number in range(draw.choice((1, 3, 3))):
        if ending == "folder":
            (folder / f"{number}.csv").write_text(text, errors="surrogatepass")
            continue
        n = draw.choice((0, 1, 8, 8, 8))
        x = draw.choice(
            (
                np.random.default_rng(number).normal(size=(n, 3)),
                np.full((n, 3), np.nan),
                np.array(["text"] * n),
                np.array([{1: 2}] * n, dtype=object),
                np.zeros((n, 0)),
                np.zeros(()),
                np.zeros((n, 3), dtype=complex),
            )
        )
        y = draw.choice(
            (np.arange(n) % 2, np.array(["u", "v"] * n)[:n], np.zeros((n, 2)), np.arange(n + 1))
        )
        np.savez(
            folder / f"{number}.npz",
            **draw.choice(({"x": x, "y": y}, {"x": x}, {"y": y}, {"z": x})),
        )
    return folder


def try_table(seed: int, place: Path) -> str:
    """Use a malformed table; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    home = place / "table"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    path = write_malformed(home, draw)
    words = [w for w in SETTINGS if draw.random() < 0.15] or ["client=client", "label=label"]
    if draw.random() < 0.5:
        words = ["data", "describe", str(path), *words]
    else:
        words = ["run", "local", str(path), *words, "rounds=1", "--out", str(home / "out")]
    ended = Ended(words)
    return f"seed {seed}: {path.name} {words[:1] + words[2:]}: {ended.fault}" if ended.fault else ""
