"""Recipes: tables and figures of the papers, with the published numbers and ours beside them.

A recipe is `recipes/PAPER/NAME.toml`. Each of its entries is a line of `coterie run`, what the
paper prints for it, and how near ours should come. An entry with `each`, a list of tables, stands
for one entry for each of them, their values filled in where {name} stands; they may have what was
`published` for them, and those that say `quick = false` are left out of the quick mode. Values that
several entries have are `[lists]` (`recipe_entries.py`). An entry with `pool`, such a list too, is
one line of the paper that is a mean over several runs. Where {seed} stands the seed is filled in.
`coterie reproduce` runs the entries and keeps what it measured in `recipes/PAPER/NAME.json`. A
recipe may ask for the slopes of numbers (`rates.py`), for tables by two of the values that entries
differ in (`recipe_tables.py`), and for curves (`recipe_figures.py`), which are drawn beside it. All
tables and figures of the papers, also those without a recipe, are in `recipes/papers.toml`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import coterie
from coterie.core.errors import SettingError, did_you_mean
from coterie.evaluation.results_table import finite_metrics
from coterie.experiment import rates
from coterie.experiment.rates import Rate
from coterie.experiment.recipe_entries import Entry
from coterie.experiment.recipe_figures import (
    CurvePanel,
    RecipeNumbers,
    ScatterPanel,
    read_curves,
    read_points,
    recipe_panels,
)
from coterie.experiment.recipe_tables import Number, Pivot
from coterie.experiment.sweeps import Job
from coterie.files import read_json, to_json, write_text
from coterie.report.svg_charts import draw_charts
from coterie.report.text_tables import markdown_table

MODES = ("quick", "full")


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper."""

    path: Path
    seeds: dict[str, int]  # runs of each entry, quick and full
    entries: list[Entry]
    item: str  # what the paper calls it
    title: str
    paper: str
    minutes: dict[str, float]  # how long it takes on two cores, quick and full
    notes: str = ""
    order: Sequence[list[str]] = ()  # entries by rising merit, as the paper has them
    merit: str = "accuracy"  # the metric of that order
    show: Sequence[str] = ()  # metrics to show also where the paper prints none
    rates: Sequence[Rate] = ()
    panels: Sequence[CurvePanel] = ()  # curves by round
    scatters: Sequence[ScatterPanel] = ()  # clients in a plane
    pivots: Sequence[Pivot] = ()  # tables by two values

    @classmethod
    def read(cls, path: Path) -> Recipe:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        seeds = {"quick": raw.pop("quick_seeds", 1), "full": raw.pop("seeds")}
        lists = raw.pop("lists", {})
        entries = [entry for each in raw.pop("entry") for entry in Entry.expand(each, lists)]
        slopes = [Rate(**each) for each in raw.pop("rate", [])]
        return cls(
            path,
            seeds,
            entries,
            rates=slopes,
            panels=[CurvePanel(**each) for each in raw.pop("curves", [])],
            scatters=[ScatterPanel(**each) for each in raw.pop("scatter", [])],
            pivots=[Pivot(**each) for each in raw.pop("pivot", [])],
            **raw,
        )

    @property
    def name(self) -> str:
        """As in fpfc/table1."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def covers(self, item: str) -> bool:
        """Whether this is the recipe of a table or figure, or of a part of it: `Table 1, MNIST`."""
        return self.item == item or self.item.startswith(f"{item}, ")

    def select_entries(self, mode: str, only: str = "") -> dict[int, Entry]:
        """The entries that are run in a mode, by their number.

        With `only`, that of this name; if there is none, those with it in their name.
        """
        possible = [each for each in self.entries if mode == "full" or each.quick is not None]
        exact = {i: entry for i, entry in enumerate(possible) if entry.name == only}
        found = exact or {i: entry for i, entry in enumerate(possible) if only in entry.name}
        if not found:
            names = ", ".join(entry.name for entry in possible)
            raise SettingError(f"no entry of {self.name} has {only!r} in its name ({names})")
        return found

    def jobs(self, mode: str, seeds: int, folder: Path, only: str = "") -> list[Job]:
        """Every run of the chosen entries, entry by entry and seed by seed."""
        place = folder / f"{self.name.replace('/', '-')}-{mode}"
        return [
            Job(words, place / f"{number:02d}-seed{seed}{f'-{i}' if i else ''}")
            for number, entry in self.select_entries(mode, only).items()
            for seed in range(seeds)
            for i, words in enumerate(entry.words(mode, seed))
        ]

    @property
    def measured(self) -> dict[str, Any]:
        """What was measured before, by mode."""
        found: dict[str, Any] = read_json(self.path.with_suffix(".json"), {})
        return found

    def save_numbers(
        self,
        mode: str,
        seeds: int,
        numbers: dict[str, dict[str, Number]],
        folders: Mapping[str, Sequence[Path]] | None = None,
    ) -> Path:
        """Write what was measured beside the recipe; numbers of other entries and modes stay.

        What is drawn is read from the `folders` of the runs of each entry.
        """
        path = self.path.with_suffix(".json")
        before = self.measured.get(mode, {"seeds": {}, "entries": {}})
        names = [entry.name for entry in self.entries]
        kept = {
            "seeds": {**before["seeds"], **dict.fromkeys(numbers, seeds)},
            "entries": {**before["entries"], **numbers},
            "curves": {**before.get("curves", {}), **read_curves(folders or {}, self.panels)},
        }
        record: dict[str, Any] = {"coterie": coterie.__version__}
        for part, found in kept.items():
            if found or part != "curves":
                record[part] = {name: found[name] for name in names if name in found}
        points = {**before.get("points", {}), **read_points(folders or {}, self.scatters)}
        if points:
            record["points"] = points
        write_text(path, to_json({**self.measured, mode: record}, indent=2) + "\n")
        return path

    def stored_numbers(self, mode: str, only: str = "") -> dict[str, dict[str, Number]]:
        """What was measured of the chosen entries in a mode before."""
        chosen = [entry.name for entry in self.select_entries(mode, only).values()]
        known = self.measured.get(mode, {"entries": {}})["entries"]
        found = {name: known[name] for name in chosen if name in known}
        if not found:
            raise SettingError(f"nothing was measured of these entries of {self.name}, {mode}")
        return found

    def rate_rows(self, mode: str) -> list[list[str]]:
        """The measured slopes beside those of the theory, by all that was measured in a mode."""
        return rates.rate_rows(self.rates, self.entries, self.measured[mode])

    def tables(self, mode: str) -> list[str]:
        """The tables that a recipe asks for, in Markdown, of all that was measured in a mode."""
        known = self.measured.get(mode, {"entries": {}})["entries"]
        return [each.markdown(self.entries, known) for each in self.pivots]

    def save_picture(self, mode: str) -> Path | None:
        """Draw what was measured in a mode beside the recipe, if there is something to draw."""
        shown = self.rates, self.panels, self.measured[mode], self.scatters
        numbers = RecipeNumbers(self.entries, *shown)
        panels = recipe_panels(numbers)
        if not panels:
            return None
        path = self.path.with_name(f"{self.path.stem}-{mode}.svg")
        write_text(path, draw_charts(panels, f"{self.item}: {self.title}"))
        return path

    def run_folders(
        self, mode: str, seeds: int, folder: Path, only: str = ""
    ) -> dict[str, list[Path]]:
        """The folders of the runs of every chosen entry that are all done."""
        jobs = iter(self.jobs(mode, seeds, folder, only))
        found = {}
        for entry in self.select_entries(mode, only).values():
            mine = list(itertools.islice(jobs, seeds * len(entry.pool)))
            if all(job.result is not None for job in mine):
                found[entry.name] = [job.folder for job in mine]
        return found

    def numbers(
        self, mode: str, seeds: int, results: Sequence[dict[str, Any] | None], only: str = ""
    ) -> dict[str, dict[str, Number]]:
        """Mean and standard deviation of every metric of the chosen entries, over the seeds.

        An entry of which a run failed has none, and no metric that is not finite in every run.
        Where an entry pools runs, a seed gives their mean.
        """
        pending = iter(results)
        found: dict[str, dict[str, Number]] = {}
        for entry in self.select_entries(mode, only).values():
            pool, all_runs = len(entry.pool), seeds * len(entry.pool)
            runs = [result["metrics"] for result in itertools.islice(pending, all_runs) if result]
            if len(runs) < all_runs:
                continue
            found[entry.name] = {
                name: (mean(means), stdev(means) if seeds > 1 else 0.0)
                for name in runs[0]
                for values in [finite_metrics(runs, name)]
                if len(values) == all_runs
                for means in [[mean(values[i : i + pool]) for i in range(0, all_runs, pool)]]
            }
        return found

    def verdicts(
        self, numbers: dict[str, dict[str, Number]]
    ) -> tuple[list[str], list[list[str]], list[str]]:
        """The table of published and measured numbers, and a line on every order that was asked."""
        rows = []
        for entry in self.entries:
            for metric in dict.fromkeys([*entry.published, *self.show]):
                published = entry.published.get(metric)
                found = numbers.get(entry.name, {}).get(metric)
                if published is None and found is None:
                    continue
                rows.append(
                    [
                        entry.name,
                        metric,
                        "" if published is None else f"{published:g}",
                        number_text(found, ran=entry.name in numbers),
                        verdict(published, found, entry.tolerance.get(metric)),
                    ]
                )
        orders = []
        for names in self.order:
            if all(self.merit in numbers.get(name, {}) for name in names):
                means = [numbers[name][self.merit][0] for name in names]
                held = "holds" if means == sorted(means) else "does NOT hold"
                orders.append(f"{' < '.join(names)} in {self.merit}: {held}")
        return ["entry", "metric", "published", "measured", "verdict"], rows, orders


def number_text(found: Number | None, *, ran: bool) -> str:
    """A measured number; of an entry that `ran` it may have none, because a run diverged."""
    if found is None:
        return "diverged" if ran else "not run"
    return "{:.4f} ± {:.4f}".format(*found)


def verdict(published: float | None, found: Number | None, tolerance: float | None) -> str:
    """Whether a number is as near as the recipe asks.

    >>> verdict(0.94, (0.935, 0.0), 0.01), verdict(0.94, (0.9, 0.0), 0.01)
    ('reached', 'off by -0.0400')
    """
    if published is None or found is None or tolerance is None:
        return ""
    gap = found[0] - published
    return "reached" if abs(gap) <= tolerance else f"off by {gap:+.4f}"


def recipes_folder() -> Path:
    """Where the recipes are: beside the source, or inside the installed package."""
    package = Path(coterie.__file__).parent
    beside = package.parent.parent / "recipes"
    return beside if beside.is_dir() else package / "recipes"


def all_recipes() -> list[Recipe]:
    return [Recipe.read(path) for path in sorted(recipes_folder().glob("*/*.toml"))]


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, as in fpfc/table1."""
    known = {each.name: each for each in all_recipes()}
    if name not in known:
        near = did_you_mean(name, known) or f" (recipes: {', '.join(known)})"
        raise SettingError(f"no recipe is named {name}{near}")
    return known[name]


def recipe_list() -> str:
    """Every table and figure of the papers, its recipes, their minutes and what was measured."""
    known, papers = all_recipes(), read_papers()
    head = ["table or figure", "what it shows", "state", "recipe", "quick", "full", "measured"]
    blocks = []
    for key, paper in papers.items():
        rows = []
        for item in paper["items"]:
            owner, name = item.get("same", [key, item["name"]])
            mine = [each for each in known if each.path.parent.name == owner and each.covers(name)]
            first = next(each for each in papers[owner]["items"] if each["name"] == name)
            status = recipe_status(first, mine)
            rows.append([item["name"], item["what"], status, *last_columns(mine)])
        # A recipe of something that the list does not have.
        rows += [
            [each.item, each.title, "ready", *last_columns([each])]
            for each in known
            if each.path.parent.name == key
            and not any(each.covers(i["name"]) for i in paper["items"])
        ]
        blocks.append(f"{paper['title']}\n\n{markdown_table(head, rows)}")
    return "\n\n".join(blocks)


def read_papers() -> dict[str, Any]:
    """The papers by the folder of their recipes, each with all its tables and figures."""
    return tomllib.loads((recipes_folder() / "papers.toml").read_text(encoding="utf-8"))


def recipe_status(item: dict[str, Any], mine: list[Recipe]) -> str:
    """Whether a table or figure can be run: ready, in part, not yet, or nothing to run."""
    if not item.get("run", True):
        return "nothing to run"
    if not mine:
        return "not yet"
    name, found = item["name"], {each.item for each in mine}
    parts = {f"{name}, {part}" for part in item.get("parts", [])}
    return "ready" if name in found or (parts and parts <= found) else "in part"


def last_columns(mine: list[Recipe]) -> list[str]:
    """Recipes, minutes and what was measured, as cells of the list."""
    return [
        ", ".join(each.name for each in mine),
        ", ".join(f"{each.minutes['quick']:g} min" for each in mine),
        ", ".join(f"{each.minutes['full']:g} min" for each in mine),
        ", ".join(" and ".join(measured_modes(each)) or "-" for each in mine),
    ]


def measured_modes(recipe: Recipe) -> list[str]:
    """The modes in which a recipe was measured, how many of its entries, and with fewer seeds."""
    found = []
    for mode in MODES:
        if mode in recipe.measured:
            seeds = recipe.measured[mode]["seeds"].values()
            have, want = len(seeds), len(recipe.select_entries(mode))
            fewer = sum(number < recipe.seeds[mode] for number in seeds)
            short = f", {fewer} with fewer seeds" if fewer else ""
            whole = have == want and not fewer
            found.append(mode if whole else f"{mode} ({have} of {want}{short})")
    return found
