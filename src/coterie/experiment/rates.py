"""Rates: how a measured number grows with a quantity, beside what a theorem says of it.

A power law is a straight line on logarithmic axes, and its exponent is the slope of that line. A
recipe names the entries that differ in the quantity, and the slope that a theorem gives:

    [[rate]]
    name = "fresh samples"
    entries = "machines m = {m}"      # as an [[entry]] above is named, which stands for one of each
    x = "m"
    theory = -0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

HEAD = ["rate", "metric", "over", "theory", "measured", "verdict"]


class EachEntry(Protocol):
    """One of the entries that an `[[entry]]` of a recipe stands for."""

    @property
    def name(self) -> str: ...
    @property
    def template(self) -> str:
        """Its name before values were filled in, which it has in common with the others."""

    @property
    def values(self) -> Mapping[str, Any]:
        """What was filled in."""


class RatePoint(NamedTuple):
    """A metric of the entry at x, over some seeds."""

    x: float
    mean: float
    deviation: float
    seeds: int


class PowerLaw(NamedTuple):
    """y = factor * x^slope, with the standard error of the slope."""

    slope: float
    error: float
    factor: float

    def value(self, x: float) -> float:
        """y at x."""
        return self.factor * math.pow(x, self.slope)


@dataclass(frozen=True)
class Rate:
    """What is measured of a rate, and what a theorem says."""

    name: str
    entries: str  # the name of an [[entry]], as it is before values are filled in
    x: str  # that which these differ in
    theory: float  # the slope
    metric: str = "distance"
    tolerance: float = 0.1  # of the slope
    bound: bool = False  # whether the theorem only bounds the slope, so that a smaller one will do
    least: float = 0.0  # the smallest x for which the theorem speaks; others are only drawn
    panel: str = ""  # the title of the panel that it is drawn in; empty: by the metric and x

    @property
    def title(self) -> str:
        """Of the panel."""
        return self.panel or f"{self.metric} by {self.x}"

    def points(self, entries: Sequence[EachEntry], record: Mapping[str, Any]) -> list[RatePoint]:
        """What a record of a recipe's numbers has of the entries, by rising x."""
        found = []
        for entry in entries:
            number = record["entries"].get(entry.name, {}).get(self.metric)
            if entry.template == self.entries and number is not None:
                x, count = float(entry.values[self.x]), record["seeds"][entry.name]
                mean, deviation = number
                found.append(RatePoint(x, mean, deviation, count))
        return sorted(found)

    def points_of_theory(self, points: Sequence[RatePoint]) -> list[RatePoint]:
        """The points that the theorem speaks of."""
        return [point for point in points if point.x >= self.least and point.mean > 0]

    def verdict(self, law: PowerLaw) -> str:
        """Whether a measured law is as the theorem says."""
        gap = law.slope - self.theory
        if abs(gap) <= self.tolerance:
            return "reached"
        return "within the bound" if self.bound and gap < 0 else f"off by {gap:+.3f}"


def fit_power(points: Sequence[RatePoint]) -> PowerLaw | None:
    """The power law through points by least squares on logarithmic axes; None without two x.

    The error of the slope comes from the deviations over seeds, as if entries were independent.

    >>> fit_power([RatePoint(x, 3 / x**0.5, 0.0, 1) for x in (1, 4, 16)])
    PowerLaw(slope=-0.5, error=0.0, factor=3.0)
    """
    if len({point.x for point in points}) < 2:
        return None
    x, y = ([math.log(value) for value in axis] for axis in list(zip(*points, strict=True))[:2])
    middle, height = sum(x) / len(x), sum(y) / len(y)
    leverage = [each - middle for each in x]
    square = sum(each**2 for each in leverage)
    slope = sum(a * b for a, b in zip(leverage, y, strict=True)) / square
    variance = sum(
        (a / square * point.deviation / point.mean) ** 2 / point.seeds
        for a, point in zip(leverage, points, strict=True)
    )
    factor = math.exp(height - slope * middle)
    return PowerLaw(round(slope, 12), math.sqrt(variance), round(factor, 12))


def theory_law(rate: Rate, points: Sequence[RatePoint]) -> PowerLaw:
    """The theorem's slope, as high as the points are: it leaves the factor open."""
    height = sum(math.log(point.mean) - rate.theory * math.log(point.x) for point in points)
    return PowerLaw(rate.theory, 0.0, math.exp(height / len(points)))


def rate_rows(
    rates: Sequence[Rate], entries: Sequence[EachEntry], record: Mapping[str, Any]
) -> list[list[str]]:
    """A row of the table `HEAD` for every rate, as far as a record has its numbers."""
    rows = []
    for rate in rates:
        points = rate.points_of_theory(rate.points(entries, record))
        law = fit_power(points)
        over = f"{rate.x} = {points[0].x:g} to {points[-1].x:g}" if points else rate.x
        rows.append(
            [
                f"{rate.title}: {rate.name}",
                rate.metric,
                over,
                f"{'at most ' if rate.bound else ''}{rate.theory:+g}",
                "not run" if law is None else f"{law.slope:+.3f} ± {law.error:.3f}",
                "" if law is None else rate.verdict(law),
            ]
        )
    return rows
