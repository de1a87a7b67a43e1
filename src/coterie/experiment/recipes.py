"""Recipes: tables and figures of the papers, with the published numbers and ours beside them.

A recipe is `recipes/PAPER/NAME.toml`. Each of its entries is a line of `coterie run`, what the
paper prints for it, and how near ours should come. `coterie reproduce` runs the entries and keeps
what it measured in `recipes/PAPER/NAME.json`.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import coterie
from coterie.core.errors import SettingError, did_you_mean
from coterie.experiment.compare import markdown
from coterie.experiment.sweep import Job
from coterie.files import to_json, write_text

Number = tuple[float, float]  # mean and standard deviation over seeds
MODES = ("quick", "full")


@dataclass(frozen=True)
class Entry:
    """One line of a table: what is run, what was published, how near is near enough."""

    name: str
    run: str  # words of `coterie run`, without the seed
    quick: str | None  # settings that make it quick; None: left out when in a hurry
    published: dict[str, float]
    tolerance: dict[str, float]

    def words(self, mode: str) -> list[str]:
        """The words of `coterie run`; in a hurry with the settings that make it quick."""
        words = shlex.split(self.run)
        if mode == "full":
            return words
        changed = dict(word.split("=", 1) for word in shlex.split(self.quick or ""))
        kept = [word for word in words if word.partition("=")[0] not in changed]
        return kept + [f"{key}={value}" for key, value in changed.items()]


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper."""

    name: str  # as in fpfc/table1
    item: str  # what the paper calls it
    title: str
    paper: str
    seeds: int
    notes: str
    minutes: dict[str, float]  # how long it takes on two cores, quick and full
    entries: list[Entry]
    order: list[list[str]]  # entries by rising accuracy, as the paper has them
    path: Path

    @classmethod
    def read(cls, path: Path) -> Recipe:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = [
            Entry(
                each["name"],
                each["run"],
                each.get("quick"),
                each.get("published", {}),
                each.get("tolerance", {}),
            )
            for each in raw["entry"]
        ]
        return cls(
            f"{path.parent.name}/{path.stem}",
            raw["item"],
            raw["title"],
            raw["paper"],
            raw["seeds"],
            raw.get("notes", ""),
            raw["minutes"],
            entries,
            raw.get("order", []),
            path,
        )

    def chosen(self, mode: str) -> list[Entry]:
        """The entries that are run in a mode."""
        return [entry for entry in self.entries if mode == "full" or entry.quick is not None]

    def jobs(self, mode: str, seeds: int, folder: Path) -> list[Job]:
        """Every run of the recipe, entry by entry and seed by seed."""
        place = folder / f"{self.name.replace('/', '-')}-{mode}"
        return [
            Job((*entry.words(mode), f"seed={seed}"), place / f"{number:02d}-seed{seed}")
            for number, entry in enumerate(self.chosen(mode))
            for seed in range(seeds)
        ]

    @property
    def measured(self) -> dict[str, Any]:
        """What was measured before, by mode."""
        path = self.path.with_suffix(".json")
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def keep(self, mode: str, seeds: int, numbers: dict[str, dict[str, Number]]) -> Path:
        """Write what was measured beside the recipe; the other mode's numbers stay."""
        path = self.path.with_suffix(".json")
        record = {"coterie": coterie.__version__, "seeds": seeds, "entries": numbers}
        write_text(path, to_json({**self.measured, mode: record}, indent=2) + "\n")
        return path

    def numbers(
        self, mode: str, seeds: int, results: Sequence[dict[str, Any]]
    ) -> dict[str, dict[str, Number]]:
        """Mean and standard deviation of every metric of every entry, over the seeds."""
        pending = iter(results)
        found: dict[str, dict[str, Number]] = {}
        for entry in self.chosen(mode):
            runs = [next(pending)["metrics"] for _ in range(seeds)]
            found[entry.name] = {
                name: spread([run[name] for run in runs])
                for name in runs[0]
                if all(name in run for run in runs)
            }
        return found

    def verdicts(
        self, numbers: dict[str, dict[str, Number]]
    ) -> tuple[list[str], list[list[str]], list[str]]:
        """The table of published and measured numbers, and a line on every order that was asked."""
        rows = []
        for entry in self.entries:
            for metric, published in entry.published.items():
                found = numbers.get(entry.name, {}).get(metric)
                rows.append(
                    [
                        entry.name,
                        metric,
                        f"{published:g}",
                        "not run" if found is None else text(found),
                        verdict(published, found, entry.tolerance.get(metric)),
                    ]
                )
        orders = []
        for names in self.order:
            if all("accuracy" in numbers.get(name, {}) for name in names):
                means = [numbers[name]["accuracy"][0] for name in names]
                held = "holds" if means == sorted(means) else "does NOT hold"
                orders.append(f"{' < '.join(names)} in accuracy: {held}")
        return ["entry", "metric", "published", "measured", "verdict"], rows, orders


def spread(values: list[float]) -> Number:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def text(number: Number) -> str:
    """A mean with its standard deviation.

    >>> text((0.94213, 0.0004))
    '0.9421 ± 0.0004'
    """
    return f"{number[0]:.4f} ± {number[1]:.4f}"


def verdict(published: float, found: Number | None, tolerance: float | None) -> str:
    """Whether a number is as near as the recipe asks.

    >>> verdict(0.94, (0.935, 0.0), 0.01), verdict(0.94, (0.9, 0.0), 0.01)
    ('reached', 'off by -0.0400')
    """
    if found is None or tolerance is None:
        return ""
    gap = found[0] - published
    return "reached" if abs(gap) <= tolerance else f"off by {gap:+.4f}"


def folder() -> Path:
    """Where the recipes are: beside the source, or inside the installed package."""
    package = Path(coterie.__file__).parent
    beside = package.parent.parent / "recipes"
    return beside if beside.is_dir() else package / "recipes"


def all_recipes() -> list[Recipe]:
    return [Recipe.read(path) for path in sorted(folder().glob("*/*.toml"))]


def recipe(name: str) -> Recipe:
    """A recipe by its name, as in fpfc/table1."""
    known = {each.name: each for each in all_recipes()}
    if name not in known:
        near = did_you_mean(name, known) or f" (recipes: {', '.join(known)})"
        raise SettingError(f"no recipe is named {name}{near}")
    return known[name]


def listing() -> str:
    """Every recipe with what it is of, how long it takes and what was measured."""
    head = ["recipe", "of", "quick", "full", "measured"]
    rows = [
        [
            each.name,
            f"{each.item}: {each.title}",
            f"{each.minutes['quick']:g} min",
            f"{each.minutes['full']:g} min",
            ", ".join(mode for mode in MODES if mode in each.measured) or "not yet",
        ]
        for each in all_recipes()
    ]
    return markdown(head, rows)
