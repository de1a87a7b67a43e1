"""The accuracies that the pages of the algorithms give are those that their commands print.

`make numbers` runs all of these commands; the gate only reads the pages.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_main import coterie_process

DOCS = Path(__file__).parent.parent / "docs"
COMMAND = r"`coterie run (?P<command>[^`]+) seed=(?P<seed>S|\d+)`"
SEEDS = r"(?:, S = (?P<seeds>\d+ to \d+|\d+(?:, \d+)*))?"
# "83.6 % on average (83.1 to 84.2)", "90.1, 90.2 and 90.3 %" of three seeds, or "95.8 %" of one
NUMBER = r"\d+\.\d+"
FOUND = (
    rf"(?:(?P<mean>{NUMBER}) % on average \((?P<range>[^)]+)\)"
    rf"|(?P<each>{NUMBER}(?:, {NUMBER})*(?: and {NUMBER})?) %)"
)
CLAIM = re.compile(COMMAND + SEEDS + r"(?:(?!\n\n|`coterie|\n\|).)*?\b" + FOUND, re.DOTALL)
# Another processor rounds otherwise, and over many rounds that moves a sample or two of a thousand.
MEAN_OFF, ONE_OFF = 0.15, 0.35  # percent


class Claim(NamedTuple):
    """What a page says that a command prints for some seeds, in percent."""

    page: str
    command: str
    seeds: list[int]
    mean: float | None
    each: list[float]  # by seed
    range: list[float]  # of all seeds, if it is not said by seed


def claims(page: Path) -> list[Claim]:
    found = []
    for match in CLAIM.finditer(page.read_text()):
        seeds = whole(match["seeds"]) if match["seed"] == "S" else [int(match["seed"])]
        several = match["each"] or match["range"]
        numbers = [float(number) for number in re.findall(NUMBER, several)]
        is_range = re.search(r"\bto\b", several)
        each, ends = ([], numbers) if is_range else (numbers, [])
        mean = None if match["mean"] is None else float(match["mean"])
        found.append(Claim(page.stem, match["command"], seeds, mean, each, ends))
    return found


def whole(text: str) -> list[int]:
    first, _, last = text.partition(" to ")
    return list(range(int(first), int(last) + 1)) if last else [int(i) for i in text.split(", ")]


# For each page, how many claims it makes, and how many more commands with a seed it has: these are
# about something else than an accuracy. A claim that is written so that it is not found is missed
# here.
PAGES = {
    "cfl": (4, 4),
    "ditto": (1, 0),
    "fedavg": (1, 0),
    "feddane": (2, 0),
    "feddist": (1, 0),
    "feddws": (1, 0),
    "fedprc": (11, 0),
    "fedprox": (1, 0),
    "fedroc": (7, 0),
    "fedsgd": (3, 0),
    "fesem": (1, 1),
    "fesem-ma": (5, 0),
    "fpfc-l1": (1, 0),
    "hypcluster": (1, 0),
    "ifca": (2, 2),
    "k-fed": (0, 1),
    "local": (1, 0),
    "one-shot": (2, 0),
    "oracle": (1, 0),
    "per-fedavg": (1, 0),
    "tkm": (2, 0),
}
CLAIMS = [claim for page in sorted(DOCS.glob("*.md")) for claim in claims(page)]


def test_claims_are_read_as_they_are_meant(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`coterie run a b seed=S`, S = 0 to 2: accuracy 83.6 % on average (83.1 to\n84.2).\n\n"
        "| `coterie run a k=0 seed=S`, S = 1, 2 (60 rounds) | 39.8 % on average (37.9, 41.2) |\n"
        "| `coterie run c seed=S`, S = 0 to 2 | ARI 1.0, accuracy 85.1, 81.8 and 88.5 % |\n"
        "| `coterie run d seed=S`, S = 0 to 9 | the same |\n"
        "| `coterie run e seed=7` | 77.6 % |\n"
    )
    assert claims(page) == [
        Claim("page", "a b", [0, 1, 2], 83.6, [], [83.1, 84.2]),
        Claim("page", "a k=0", [1, 2], 39.8, [37.9, 41.2], []),
        Claim("page", "c", [0, 1, 2], None, [85.1, 81.8, 88.5], []),
        Claim("page", "e", [7], None, [77.6], []),
    ]


def test_every_claim_of_every_page_is_found():
    found = {}
    for page in sorted(DOCS.glob("*.md")):
        commands, known = len(re.findall(COMMAND, page.read_text())), len(claims(page))
        if commands:
            found[page.stem] = (known, commands - known)
    assert found == PAGES


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.command)
def test_means_and_seeds_agree_with_each_other(claim):
    if claim.each:
        assert len(claim.each) == len(claim.seeds)
        if claim.mean is not None:
            assert claim.mean == pytest.approx(sum(claim.each) / len(claim.each), abs=0.1)
    else:
        low, high = claim.range
        assert low <= claim.mean <= high


@pytest.mark.numbers
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.command)
def test_a_command_prints_what_its_page_says(claim, tmp_path):
    found = [accuracy(claim.command, seed, tmp_path) for seed in claim.seeds]
    shown = ", ".join(f"{number:.1f}" for number in found)
    if claim.mean is not None:
        assert sum(found) / len(found) == pytest.approx(claim.mean, abs=MEAN_OFF), shown
    if claim.each:
        assert found == pytest.approx(claim.each, abs=ONE_OFF), shown
    else:
        assert [min(found), max(found)] == pytest.approx(claim.range, abs=ONE_OFF), shown


def accuracy(command: str, seed: int, folder: Path) -> float:
    """What the command prints, in percent."""
    where = str(folder / str(seed))
    words = ["run", *command.split(), f"seed={seed}", "--json", "--out", where]
    process = coterie_process(*words)
    printed, said = process.communicate()
    if process.returncode and "coterie data get" in said:
        pytest.skip("its data set is not here")
    assert process.returncode == 0, said
    return 100 * json.loads(printed)["metrics"]["accuracy"]
