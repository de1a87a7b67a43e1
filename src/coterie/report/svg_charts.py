"""Charts as SVG: points, error bars, bands and lines, for pictures that stand in a repository.

The pages of runs draw with plotly, which needs a browser. What `coterie reproduce` measured is
drawn here instead, as one file of text that any viewer shows and that changes only with its
numbers:

    panel = Panel("error by machines", [Series("IFCA", m, error, spread)], "m", "error", log="xy")
    write_text(path, draw_charts([panel], "Corollary 1"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from coterie.report.palette import colour

WIDTH, HEIGHT = 300, 210  # of the frame of a panel
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 34, 44  # around the frame
LINE = 16  # height of a line of text
COLUMNS = 3  # panels side by side, at most
INK, GRID = "#333333", "#E3E6EA"
MARGIN = 0.06  # of the range of values, between them and the frame
TICKS = 5  # on an axis, about


@dataclass(frozen=True)
class Series:
    """Values y over x with a name; points that are not finite are left out.

    With `marks` each value is a point, and its `spread` an error bar; without, the spread of a line
    is a band. `hue` is the place of its colour in the palette; without it, its place in the panel.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()  # to both sides of y; none if empty
    marks: bool = True
    line: bool = True
    dashed: bool = False
    hue: int | None = None


@dataclass(frozen=True)
class Panel:
    """Series on common axes, those that `log` names (x, y, xy) logarithmic."""

    title: str
    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    log: str = ""

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points that can be drawn, those of the error bars too."""
        return [
            point
            for each in self.series
            for x, low, y, high in self.visible(each)
            for point in ((x, low), (x, y), (x, high))
        ]

    def visible(self, series: Series) -> list[tuple[float, float, float, float]]:
        """The points of a series that can be drawn: x, and y with its lower and upper end.

        Below zero there is nothing on a logarithmic axis, and a bar that goes there ends at y.
        """
        spreads = series.spread or [0.0] * len(series.y)
        found = []
        for x, y, spread in zip(series.x, series.y, spreads, strict=True):
            if not (math.isfinite(x) and math.isfinite(y)):
                continue
            if ("x" in self.log and x <= 0) or ("y" in self.log and y <= 0):
                continue
            spread = spread if math.isfinite(spread) else 0.0
            low = y if "y" in self.log and y <= spread else y - spread
            found.append((x, low, y, y + spread))
        return found


@dataclass(frozen=True)
class Scale:
    """Where values lie along an axis, `begin` and `end` in pixels."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    @classmethod
    def fitting(cls, values: Sequence[float], begin: float, end: float, log: bool) -> Scale:
        """A scale that shows all values, with a margin on both sides."""
        measure: Callable[[float], float] = math.log10 if log else float
        low, high = measure(min(values)), measure(max(values))
        room = MARGIN * (high - low) or MARGIN * max(abs(low), 1.0)
        return cls(low - room, high + room, begin, end, log)

    def place(self, value: float) -> float:
        """The pixel of a value."""
        share = ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round values inside the scale: powers of ten and their halves and fifths if it is wide.

        >>> Scale(0.0, 1.0, 0, 100).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Scale(-2.1, 2.1, 0, 100, log=True).ticks()
        [0.01, 0.1, 1.0, 10.0, 100.0]
        """
        if not self.log:
            return round_values(self.low, self.high)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1,), (1, 3), (1, 2, 5)):
            found = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
            inside = [v for v in found if self.low <= math.log10(v) <= self.high]
            if len(inside) >= TICKS - 1 or (len(digits) == 3 and len(inside) > 2):
                return inside
        return [v for v in round_values(10**self.low, 10**self.high) if v > 0]


def round_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about as many as TICKS."""
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.10g}") for place in range(first, last + 1)]


def draw_charts(panels: Sequence[Panel], title: str = "") -> str:
    """The panels in rows as one SVG file; a panel without a point that can be drawn is left out.

    A legend that is the same for all is drawn once, below them.
    """
    panels = [panel for panel in panels if panel.points]
    if not panels:
        return svg_file(LEFT + WIDTH + RIGHT, 2 * LINE, title, [svg_text(10, 20, "no values")])
    legends = [legend_entries(panel) for panel in panels]
    shared = all(legend == legends[0] for legend in legends)
    across = min(COLUMNS, len(panels))
    width, head = across * (LEFT + WIDTH + RIGHT), LINE * 2 if title else 0
    body = [svg_text(10, 21, title, size=15, weight="600")] if title else []
    top = head
    for begin in range(0, len(panels), across):
        row = range(begin, min(begin + across, len(panels)))
        for place in row:
            left = (place - begin) * (LEFT + WIDTH + RIGHT)
            body += draw_panel(panels[place], left, top)
            if not shared:
                body += draw_legend(legends[place], left + LEFT, top + TOP + HEIGHT + BOTTOM)
        lines = 0 if shared else max(len(legends[place]) for place in row)
        top += TOP + HEIGHT + BOTTOM + LINE * lines + LINE // 2
    if shared and len(panels[0].series) > 1:
        body += draw_legend(legends[0], LEFT, top)
        top += LINE * len(legends[0]) + LINE // 2
    return svg_file(width, top, title, body)


class LegendEntry(NamedTuple):
    """How a series is drawn, and its name."""

    name: str
    hue: str
    marks: bool
    line: bool
    dashed: bool


def legend_entries(panel: Panel) -> list[LegendEntry]:
    """The legend of a panel: its series that have a name."""
    return [
        LegendEntry(each.name, colour_of(each, place), each.marks, each.line, each.dashed)
        for place, each in enumerate(panel.series)
        if each.name
    ]


def colour_of(series: Series, place: int) -> str:
    """The colour of a series at a place in its panel."""
    return colour(place if series.hue is None else series.hue)


def draw_legend(entries: Sequence[LegendEntry], left: float, top: float) -> Iterator[str]:
    """A line of text for each entry."""
    for place, entry in enumerate(entries):
        y = top + LINE * (place + 0.5)
        if entry.line:
            yield polyline([(left, y), (left + 24, y)], entry.hue, entry.dashed)
        if entry.marks:
            yield dot(left + 12, y, entry.hue)
        yield svg_text(left + 32, y + 4, entry.name)


def draw_panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    """The frame, the axes and the series of a panel whose upper left corner is given."""
    x0, y0 = left + LEFT, top + TOP
    xs, ys = zip(*panel.points, strict=True)
    across = Scale.fitting(xs, x0, x0 + WIDTH, "x" in panel.log)
    up = Scale.fitting(ys, y0 + HEIGHT, y0, "y" in panel.log)
    yield svg_text(x0, y0 - 10, panel.title, weight="600")
    for tick in across.ticks():
        x = across.place(tick)
        yield polyline([(x, y0), (x, y0 + HEIGHT)], GRID, width=1)
        yield svg_text(x, y0 + HEIGHT + LINE, f"{tick:g}", anchor="middle")
    for tick in up.ticks():
        y = up.place(tick)
        yield polyline([(x0, y), (x0 + WIDTH, y)], GRID, width=1)
        yield svg_text(x0 - 6, y + 4, f"{tick:g}", anchor="end")
    yield (
        f'<rect x="{x0:g}" y="{y0:g}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
        f'stroke="{INK}"/>'
    )
    yield svg_text(x0 + WIDTH / 2, y0 + HEIGHT + 2 * LINE + 2, panel.x_label, anchor="middle")
    yield svg_text(left + 14, y0 + HEIGHT / 2, panel.y_label, anchor="middle", turned=True)
    for place, each in enumerate(panel.series):
        points = sorted(panel.visible(each))
        yield from draw_series(each, points, colour_of(each, place), across, up)


def draw_series(
    series: Series,
    points: Sequence[tuple[float, float, float, float]],
    hue: str,
    across: Scale,
    up: Scale,
) -> Iterator[str]:
    """A series at its points (x, low, y, high): its band or bars, its line, its marks."""
    placed = [(across.place(x), *map(up.place, ends)) for x, *ends in points]
    if not placed:
        return
    if series.spread and series.marks:
        for x, low, _, high in placed:
            yield polyline([(x, low), (x, high)], hue, width=1)
    elif series.spread:
        around = [(x, high) for x, *_, high in placed]
        around += [(x, low) for x, low, *_ in reversed(placed)]
        yield f'<polygon points="{coordinates(around)}" fill="{hue}" fill-opacity="0.18"/>'
    if series.line:
        yield polyline([(x, y) for x, _, y, _ in placed], hue, series.dashed)
    if series.marks:
        for x, _, y, _ in placed:
            yield dot(x, y, hue)


def polyline(
    points: Sequence[tuple[float, float]], hue: str, dashed: bool = False, *, width: float = 2
) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{coordinates(points)}" fill="none" stroke="{hue}" '
        f'stroke-width="{width:g}"{dashes}/>'
    )


def coordinates(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def dot(x: float, y: float, hue: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{hue}"/>'


def svg_text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "400",
    turned: bool = False,
) -> str:
    """Words at a place; turned by a quarter to read upwards, if asked."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}"{turn}>{escape(words)}</text>'
    )


def svg_file(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """The elements of a picture as a file that needs nothing else."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" fill="{INK}" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )
