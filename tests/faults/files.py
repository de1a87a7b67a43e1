"""A user's own files, damaged: Python files of algorithms, NODE.toml and the folder of an app."""

import os
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import dedent

from tests.faults.command import Ended
from tests.faults.damage import damage
from tests.faults.folders import TABLE
from tests.own import METHOD

DIGITS = ["rotated-digits", "clients=6", "samples=20", "rounds=1"]
NODE = 'data = "rows.csv"\nmemory = "memory"\ncolumns = ["a", "b", "label"]\nmap_samples = 10\n'
# What stands in place of a line of a module: each is a mistake of its own kind.
LINES = (
    *("1 / 0", "raise SystemExit(3)", "raise KeyboardInterrupt", "import nothing_of_that_name"),
    *("raise ValueError('two\\nlines \\x1b[31m' + 'x' * 5000)", "raise Exception", "return 3"),
    *("def f(): f()\nf()", "class Broken(Exception):\n    def __str__(self): raise TypeError"),
    *("raise type('E', (Exception,), {'__str__': lambda self: 3})()", "x = = 1", "\t x", "é = '"),
    *("raise BaseExceptionGroup('several', [ValueError(1)])", "from coterie import Nothing"),
    *("import sys; sys.modules[__name__] = None", "None.x", "assert False", "del Method", "{}[1]"),
    *("import os; os.close(1)", "raise MemoryError", "raise RecursionError", "bytearray(10**13)"),
)
TYPES = ("int", "str", "Nothing", "'Tensor'", "list[", "None", "lambda: 0", "1")


def spoil_a_line(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    place = draw.randrange(len(lines))
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    lines[place] = "\n".join(indent + line for line in draw.choice(LINES).splitlines())
    return "\n".join(lines) + "\n"


def drop_a_line(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    del lines[draw.randrange(len(lines))]
    return "\n".join(lines) + "\n"


def swap_a_word(text: str, draw: random.Random) -> str:
    """Another word of the file, or a wrong type, in place of one."""
    words = text.split(" ")
    known = [word for word in words if word.strip()]
    words[draw.randrange(len(words))] = draw.choice((*known, *TYPES))
    return " ".join(words)


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    spoil_a_line,
    spoil_a_line,
    drop_a_line,
    swap_a_word,
    swap_a_word,
)


@cache
def app_folder(place: Path) -> Path:
    """The folder of an app on a table, as `coterie deploy init` writes it."""
    home = place / "whole-app"
    home.mkdir()
    (home / "rows.csv").write_text(TABLE)
    words = ["ifca", str(home / "rows.csv"), "client=client", "label=label", "k=2", "rounds=1"]
    ended = Ended(["deploy", "init", str(home / "app"), *words])
    assert ended.code == 0, ended.err
    return home / "app"


def own_module(home: Path, seed: int, draw: random.Random) -> tuple[list[str], str]:
    """A module of an algorithm with something wrong in it, and a command on it."""
    name = f"own{seed}"
    path, text = home / f"{name}.py", dedent(METHOD)
    done = []
    if draw.random() < 0.75:
        for _ in range(draw.choice((1, 1, 2))):
            change = draw.choice(CHANGES)
            text = change(text, draw)
            done.append(change.__name__)
        path.write_text(text)
    else:
        path.write_text(text)
        done.append(damage(path, path, draw))
    method = f"{name}:Method"
    words = draw.choice(
        (
            ["run", method, *DIGITS, "--out", str(home / "out")],
            ["run", method, *DIGITS, "starts=2", "--out", str(home / "out")],
            ["describe", method],
            ["check", method, "steps=1"],
            ["deploy", "init", str(home / "app"), method, *DIGITS],
        )
    )
    return list(words), ", ".join(done)


def node_file(home: Path, place: Path, draw: random.Random) -> tuple[list[str], str]:
    """A node file or an app with something wrong in it, and `deploy check` on it."""
    app = home / "app"
    shutil.copytree(app_folder(place), app)
    node, rows = home / "NODE.toml", home / "rows.csv"
    node.write_text(NODE + ('app = "app"\n' if draw.random() < 0.3 else ""))
    rows.write_text(TABLE)
    path = draw.choice((node, node, app / "app.py", app / "pyproject.toml", rows))
    if path.suffix == ".csv" or draw.random() < 0.6:
        done = damage(path, path, draw)
    else:
        change = draw.choice(CHANGES)
        path.write_text(change(path.read_text(), draw))
        done = f"{change.__name__} {path.name}"
    return ["deploy", "check", str(node), "--app", str(app)], done


def try_file(seed: int, place: Path) -> str:
    """Use a damaged file of a user's own; what is wrong with how that ended, if anything."""
    draw = random.Random(seed)
    home, here = place / "own", os.getcwd()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    own = draw.random() < 0.7
    words, done = own_module(home, seed, draw) if own else node_file(home, place, draw)
    os.chdir(home)
    try:
        ended = Ended(words)
    finally:
        os.chdir(here)
    # A promise of an algorithm that is broken is no mistake of the command's.
    kept = words[0] == "check" and ended.code == 1 and "promises are kept" in ended.out
    fault = "" if kept else ended.fault
    return f"seed {seed}: {' '.join(words)}, {done}: {fault}" if fault else ""
