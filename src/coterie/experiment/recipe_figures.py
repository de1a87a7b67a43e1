"""The picture of a recipe: its rates, metrics of its entries by round, and clients in a plane.

    [[curves]]                      # one panel
    title = "(a) Gaussian clusters"
    metrics = ["purity"]
    entries = ["p = 0", "p = 1"]    # without it, all of them
    log = "y"                       # without it, both axes are linear
    per_round = 20                  # training steps of a round, where the axis is to count these

    [[scatter]]                     # one panel: the clients of the first run of an entry
    title = "FeSEM(4)"
    entry = "FeSEM(4)"
    x = "tuned_x"                   # columns of clients.json
    y = "tuned_y"
    by = "cluster"                  # a colour for each

`coterie reproduce` keeps means over seeds, and where clients are, beside the other numbers, and
draws the picture from those: `recipes/PAPER/NAME-quick.svg` or `-full.svg`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from coterie.experiment.rates import EachEntry, Rate, fit_power, theory_law
from coterie.files import read_json
from coterie.report.run_files import read_run
from coterie.report.svg_charts import Panel, Series

Curve = dict[str, list[float]]  # "round", and over seeds "mean" and "deviation"
EntryCurves = dict[str, dict[str, Curve]]  # by the name of the entry, by metric


@dataclass(frozen=True)
class CurvePanel:
    """Metrics of some entries by round, on common axes."""

    title: str
    metrics: Sequence[str]
    entries: Sequence[str] = ()  # names; all of them if empty
    log: str = ""  # the axes that are logarithmic, as in y
    per_round: int = 1  # of what the axis counts
    x_label: str = "round"
    y_label: str = ""

    def shows(self, entry: str) -> bool:
        """Whether an entry has a curve here."""
        return not self.entries or entry in self.entries

    def draw(self, names: Sequence[str], curves: Mapping[str, Mapping[str, Curve]]) -> Panel:
        """The panel with what is known of the entries `names`."""
        shown = [
            (name, metric)
            for name in names
            if self.shows(name)
            for metric in self.metrics
            if metric in curves.get(name, {})
        ]
        series = []
        for name, metric in shown:
            curve = curves[name][metric]
            label = name if len(self.metrics) == 1 else f"{name}, {metric}"
            deviation = curve["deviation"] if any(curve["deviation"]) else []
            x = [self.per_round * number for number in curve["round"]]
            series.append(Series(label, x, curve["mean"], deviation, marks=False))
        y_label = self.y_label or ", ".join(self.metrics)
        return Panel(self.title, series, self.x_label, y_label, self.log)


Points = dict[str, list[tuple[float, float]]]  # by what they are told apart by


@dataclass(frozen=True)
class ScatterPanel:
    """The clients of the first run of an entry, by two columns of its table of clients."""

    title: str
    entry: str
    x: str
    y: str
    by: str = "cluster"

    def read(self, folder: Path) -> Points:
        """The points of a run in `folder`; clients of whom something is not known are left out."""
        columns = read_json(folder / "clients.json", {})["clients"]
        found: Points = {}
        for x, y, group in zip(columns[self.x], columns[self.y], columns[self.by], strict=True):
            if x is not None and y is not None and group is not None:
                found.setdefault(str(group), []).append((round(x, 4), round(y, 4)))
        return dict(sorted(found.items()))

    def draw(self, points: Mapping[str, Points]) -> Panel:
        """The panel with what is known, by title."""
        series = []
        for group, own in points.get(self.title, {}).items():
            x, y = [point[0] for point in own], [point[1] for point in own]
            series.append(Series(f"{self.by} {group} ({len(own)})", x, y, line=False))
        return Panel(self.title, series, self.x, self.y)


def read_points(
    folders: Mapping[str, Sequence[Path]], panels: Sequence[ScatterPanel]
) -> dict[str, Points]:
    """What panels show of the runs in `folders`, by title."""
    return {
        each.title: each.read(folders[each.entry][0]) for each in panels if each.entry in folders
    }


class RecipeNumbers(NamedTuple):
    """What a picture is drawn from."""

    entries: Sequence[EachEntry]
    rates: Sequence[Rate]
    panels: Sequence[CurvePanel]
    record: Mapping[str, Any]  # what was measured in one mode
    scatters: Sequence[ScatterPanel] = ()


def read_curves(folders: Mapping[str, Sequence[Path]], panels: Sequence[CurvePanel]) -> EntryCurves:
    """What panels show of the runs in `folders`, by entry: means and deviations over its runs.

    A metric has the rounds in which all runs of the entry have it.
    """
    found: EntryCurves = {}
    for name, runs in folders.items():
        metrics = {metric for panel in panels if panel.shows(name) for metric in panel.metrics}
        if not metrics:
            continue
        histories = [read_run(folder).rounds for folder in runs]
        curves = {metric: mean_curve(histories, metric) for metric in sorted(metrics)}
        found[name] = {metric: curve for metric, curve in curves.items() if curve["round"]}
    return found


def mean_curve(histories: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> Curve:
    """A metric by round, over several runs."""
    runs = [
        {each["round"]: value for each in rounds for value in [each["metrics"].get(metric)]}
        for rounds in histories
    ]
    numbers = sorted(n for n in runs[0] if all(run.get(n) is not None for run in runs))
    values = [[run[n] for run in runs] for n in numbers]
    return {
        "round": numbers,
        "mean": [mean(each) for each in values],
        "deviation": [stdev(each) if len(each) > 1 else 0.0 for each in values],
    }


def rate_panels(numbers: RecipeNumbers) -> list[Panel]:
    """A panel for the rates of each title: points with error bars, and the theorem's slope."""
    panels = []
    for title, rates in groupby(numbers.rates, key=lambda rate: rate.title):
        series: list[Series] = []
        labels: list[str] = []
        for hue, rate in enumerate(rates):
            points = rate.points(numbers.entries, numbers.record)
            fitted = rate.points_of_theory(points)
            law = fit_power(fitted)
            if law is None:
                continue
            x, y, spread, _ = (list(axis) for axis in zip(*points, strict=True))
            name = f"{rate.name}: slope {law.slope:+.2f} ± {law.error:.2f}"
            series.append(Series(name, x, y, spread, line=False, hue=hue))
            ends = [fitted[0].x, fitted[-1].x]
            drawn = [theory_law(rate, fitted).value(end) for end in ends]
            said = f"{'bound' if rate.bound else 'theory'}: slope {rate.theory:+g}"
            series.append(Series(said, ends, drawn, marks=False, dashed=True, hue=hue))
            labels += [rate.x, rate.metric]
        if series:
            panels.append(Panel(title, series, labels[0], labels[1], log="xy"))
    return panels


def recipe_panels(numbers: RecipeNumbers) -> list[Panel]:
    """All panels of a recipe's picture that have a point."""
    names = [entry.name for entry in numbers.entries]
    curves = numbers.record.get("curves", {})
    drawn = [panel.draw(names, curves) for panel in numbers.panels]
    drawn += [panel.draw(numbers.record.get("points", {})) for panel in numbers.scatters]
    return [panel for panel in (*rate_panels(numbers), *drawn) if panel.points]
