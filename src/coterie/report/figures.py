"""The charts, as plotly figures in plain JSON form: {"data": [traces], "layout": {...}}.

Colours that depend on a light or dark page (text, grid, background) are absent here: page.js adds
them, so that a chart can follow the reader's choice while the page is open.
"""

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie.report import words
from coterie.report.palette import OTHER, SHAPES, Label, colour, ordered

Figure = dict[str, Any]
Round = dict[str, Any]
Columns = dict[str, Any]

# Curves have their own two hues, apart from the colours that mean clusters.
FIRST, SECOND = "#6C72D9", "#C08A1E"

# name of the metric: (label, colour, dash, drawn before the reader asks for it)
SCORES = {
    "accuracy": ("accuracy", FIRST, "solid", True),
    "success": ("success", FIRST, "solid", True),
    "ari": ("ARI", SECOND, "solid", True),
    "accuracy_macro": ("accuracy, macro", FIRST, "dash", False),
    "f1": ("F1", FIRST, "dot", False),
    "f1_macro": ("F1, macro", FIRST, "dashdot", False),
    "nmi": ("NMI", SECOND, "dash", False),
    "purity": ("purity", SECOND, "dot", False),
}
ERRORS = {
    "loss": ("loss", FIRST, "solid", True),
    "distance": ("distance", SECOND, "solid", True),
    "distance_nearest": ("distance, nearest", SECOND, "dash", True),
}

# column of a client: (label, how its values are written)
HOVER: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("name", "name", str),
    ("client", "client", str),
    ("samples", "samples", words.count),
    ("accuracy", "accuracy", words.percent),
    ("loss", "training loss", words.decimal),
    ("cluster", "found cluster", str),
    ("true", "true cluster", str),
)


def scores(rounds: Sequence[Round]) -> Figure | None:
    """Metrics for which one is best, over the rounds; None where no round has any."""
    return _curves(rounds, SCORES, {"autorangeoptions": {"clipmin": -1.02, "clipmax": 1.02}})


def errors(rounds: Sequence[Round]) -> Figure | None:
    """Metrics for which zero is best, over the rounds; None where no round has any."""
    figure = _curves(rounds, ERRORS, {"rangemode": "tozero"})
    if figure is None:
        return None
    values = [value for trace in figure["data"] for value in trace["y"]]
    # A fall over orders of magnitude would be a corner and a flat line on a linear scale.
    if min(values) > 0 and max(values) > 50 * min(values):
        figure["layout"]["yaxis"] = {"type": "log", "dtick": 1}
    return figure


def sizes(rounds: Sequence[Round], drawn: Sequence[int]) -> Figure:
    """Clients in each cluster over the rounds, stacked; clusters not in `drawn` are one layer."""
    numbers = [r["round"] for r in rounds]
    table = [r.get("sizes") or [] for r in rounds]
    layers = [
        (
            f"cluster {cluster}",
            colour(cluster),
            [row[cluster] if cluster < len(row) else 0 for row in table],
        )
        for cluster in drawn
    ]
    rest = [sum(row) - sum(row[c] for c in drawn if c < len(row)) for row in table]
    if any(rest):
        layers.append(("other clusters", OTHER, rest))
    return {
        "data": [_layer(numbers, values, name, hue) for name, hue, values in layers],
        "layout": {
            "barmode": "stack",
            "hovermode": "x unified",
            "xaxis": _round_axis(numbers),
            "yaxis": {"title": {"text": "clients"}, "rangemode": "tozero"},
        },
    }


def traffic(rounds: Sequence[Round]) -> Figure | None:
    """Bytes down to and up from the clients, in each round; None where no round counted any."""
    counted = [r for r in rounds if r.get("bytes_down") or r.get("bytes_up")]
    if not counted:
        return None
    numbers = [r["round"] for r in counted]
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": numbers,
                "y": [r.get(key) or 0 for r in counted],
                "marker": {"color": hue, "line": {"width": 0}},
                "hovertemplate": "%{y:.3s}B",
                **({"width": 0.4} if len(counted) == 1 else {}),
            }
            for key, name, hue in (
                ("bytes_down", "to the clients", FIRST),
                ("bytes_up", "from the clients", SECOND),
            )
        ],
        "layout": {
            "barmode": "stack",
            "bargap": 0.25 if len(counted) <= 80 else 0,
            "hovermode": "x unified",
            "xaxis": _round_axis(numbers),
            "yaxis": {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
        },
    }


def client_map(
    clients: Columns,
    groups: Sequence[Label],
    kind: str,
    colours: dict[Label, str],
    shapes: Sequence[Label] | None,
) -> Figure:
    """Clients as points, one trace for each of `groups` named in `colours`, the rest in grey.

    `groups` and `shapes` give a label to every client; `kind` is the word before a group's label
    in the legend. Without `shapes`, or with more labels than there are shapes, all are circles.
    """
    symbols = symbols_of(shapes)
    template, filled = _hover(clients)
    members: dict[Label, list[int]] = {label: [] for label in colours}
    others: list[int] = []
    for row, label in enumerate(groups):
        members.get(label, others).append(row)
    named = [(f"{kind} {label}", colours[label], rows) for label, rows in members.items()]
    rest = "other clusters" if named else "clients"
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [_short(clients["x"][row]) for row in rows],
            "y": [_short(clients["y"][row]) for row in rows],
            "customdata": [filled[row] for row in rows],
            "hovertemplate": template,
            "marker": {
                "color": hue,
                "size": 9 if len(groups) <= 500 else 6,
                "opacity": 0.85,
                "symbol": [symbols[shapes[row]] for row in rows]
                if symbols and shapes is not None
                else "circle",
                "line": {"width": 0.75},
            },
        }
        for name, hue, rows in [*named, (rest, OTHER if named else FIRST, others)]
        if rows
    ]
    bare = {"showticklabels": False, "ticks": "", "zeroline": False}
    return {
        "data": traces,
        "layout": {"hovermode": "closest", "xaxis": {**bare}, "yaxis": {**bare}},
    }


def symbols_of(labels: Sequence[Label] | None) -> dict[Label, str]:
    """The plotly shape of each label; empty where one shape serves all or there are too many."""
    distinct = ordered(labels or [])
    if not 1 < len(distinct) <= len(SHAPES):
        return {}
    return {label: shape for label, (shape, _) in zip(distinct, SHAPES, strict=False)}


def _curves(
    rounds: Sequence[Round], metrics: dict[str, tuple[str, str, str, bool]], axis: dict[str, Any]
) -> Figure | None:
    traces: list[dict[str, Any]] = []
    for key, (label, hue, dash, shown) in metrics.items():
        points = [(r["round"], (r.get("metrics") or {}).get(key)) for r in rounds]
        points = [(number, y) for number, y in points if y is not None and math.isfinite(y)]
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(points) <= 30 else "lines",
                    "name": label,
                    "x": [number for number, _ in points],
                    "y": [_short(y) for _, y in points],
                    "line": {"color": hue, "dash": dash, "width": 2},
                    "marker": {"size": 6, "line": {"width": 0}},
                    "visible": shown,
                    "hovertemplate": "%{y:.4~g}",
                }
            )
    if not traces:
        return None
    numbers = sorted({number for trace in traces for number in trace["x"]})
    return {
        "data": traces,
        "layout": {
            "hovermode": "x unified",
            "xaxis": _round_axis(numbers),
            "yaxis": axis,
        },
    }


def _layer(numbers: list[int], values: list[int], name: str, hue: str) -> dict[str, Any]:
    trace = {"name": name, "x": numbers, "y": values, "hovertemplate": "%{y:,}"}
    # An area over a single round has no width, so one round is drawn as a bar.
    if len(numbers) == 1:
        return {**trace, "type": "bar", "width": 0.4, "marker": {"color": hue}}
    return {
        **trace,
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "sizes",
        "line": {"color": hue, "width": 0.5},
        "fillcolor": hue + "D0",
    }


def _round_axis(numbers: Sequence[int]) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": "round"},
        "tickformat": "d",
        "showgrid": False,
        "unifiedhovertitle": {"text": "round %{x}"},
    }
    if numbers[-1] - numbers[0] <= 10:
        axis["dtick"] = 1
    if len(numbers) == 1:
        axis["range"] = [numbers[0] - 0.75, numbers[0] + 0.75]
    return axis


def _hover(clients: Columns) -> tuple[str, list[list[str]]]:
    """The hover text as a plotly template, and for each client the words it is filled with."""
    present = [field for field in HOVER if clients.get(field[0]) is not None]
    lines = [f"{label} %{{customdata[{i}]}}" for i, (_, label, _) in enumerate(present)]
    filled = [[html.escape(form(v)) for v in clients[key]] for key, _, form in present]
    return "<br>".join(lines) + "<extra></extra>", [list(row) for row in zip(*filled, strict=True)]


def _short(value: float | None) -> float | None:
    # Five digits are finer than a screen shows, and keep thousands of points small.
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
