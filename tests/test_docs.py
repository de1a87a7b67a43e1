"""Every algorithm has a page, and all pages have the same headings; what pages tell to do works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.experiment.recipes import find_recipe
from coterie.shelves import ALGORITHMS

DOCS = Path(__file__).parent.parent / "docs"
HEADINGS = [
    "What it does",
    "When to use it",
    "Try it",
    "Settings",
    "What leaves a client",
    "Numbers",
    "Differences from the paper",
    "Traps",
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_a_page_with_the_same_headings_as_the_others(name):
    text = (DOCS / f"{name}.md").read_text()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    assert f"](../src/coterie/algorithms/{ALGORITHMS[name].__module__.split('.')[-1]}.py)" in text


def test_links_between_files_lead_somewhere():
    root = DOCS.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


TABLE = re.compile(r"<!-- table (\d+) of (\S+), (quick|full) -->\n\n((?:\|.*\n)+)")
TABLES = [
    pytest.param(*found, id=f"{page.stem}-{found[1]}-{found[0]}")
    for page in sorted(DOCS.glob("*.md"))
    for found in TABLE.findall(page.read_text())
]


@pytest.mark.parametrize(("number", "name", "mode", "table"), TABLES)
def test_a_table_of_a_recipe_is_what_was_measured(number, name, mode, table):
    """As `coterie reproduce NAME --stored` prints it."""
    stored = find_recipe(name).tables(mode)[int(number) - 1]
    assert table.strip() == stored[stored.index("|") :]


COTERIE = [
    sys.executable,
    "-P",
    "-c",
    "from coterie.cli.main import main; raise SystemExit(main())",
]


@pytest.mark.slow
@pytest.mark.skipif("not __import__('importlib.util').util.find_spec('flwr')")
def test_the_page_about_your_own_algorithm_can_be_followed(tmp_path):
    """Its files are written into an empty folder and its commands are run there, in order."""
    text = (DOCS / "your-own-algorithm.md").read_text()
    for kind, block in re.findall(
        r"^```(python|toml|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ):
        if kind != "sh":
            name = re.match(r"# ([\w.]+)\n", block)
            (tmp_path / (name[1] if name else "pyproject.toml")).write_text(block)
            continue
        for line in block.splitlines():
            done = subprocess.run(
                [*COTERIE, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, line + done.stdout + done.stderr
    (tmp_path / "pyproject.toml").unlink()
    for command in (["inpython.py"], ["-m", "pytest", "-q", "-p", "no:cacheprovider"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, str(command) + done.stdout + done.stderr
    assert (tmp_path / "compared" / "report.html").exists()
