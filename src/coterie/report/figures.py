"""Curves and bars over the rounds, as plotly figures in plain JSON: {"data": [...], "layout": {}}.

Colours that depend on a light or dark page (text, grid, background) are absent here: charts.js adds
them, so that a chart can follow the reader's choice while the page is open.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from coterie.evaluation.metrics import FIXED_METRICS, metric_label
from coterie.report.palette import PALETTE, colour

Figure = dict[str, Any]
Trace = dict[str, Any]
Round = dict[str, Any]
Columns = dict[str, Any]
Points = Sequence[tuple[int, float | None]]  # (round, value)

# The own metric that numbers the rounds in which clusters change: no curve, but an axis.
CLUSTER_ROUND = "cluster_round"

# Curves have their own two hues, apart from the colours that mean clusters.
FIRST, SECOND = "#6C72D9", "#C08A1E"

# name of the metric: (label, colour, dash, drawn before the reader asks for it)
SCORES = {
    "accuracy": ("accuracy", FIRST, "solid", True),
    "train_accuracy": ("training accuracy", FIRST, "solid", True),
    "validation_accuracy": ("validation accuracy", SECOND, "longdash", True),
    "auc": ("AUC", FIRST, "dashdot", True),
    "train_auc": ("training AUC", FIRST, "dashdot", True),
    "validation_auc": ("validation AUC", SECOND, "longdashdot", True),
    "r2": ("R2", FIRST, "solid", True),
    "train_r2": ("training R2", FIRST, "solid", True),
    "validation_r2": ("validation R2", SECOND, "longdash", True),
    "success": ("success", FIRST, "solid", True),
    "ari": ("ARI", SECOND, "solid", True),
    "accuracy_macro": ("accuracy, macro", FIRST, "dash", False),
    "balanced_accuracy": ("balanced accuracy", FIRST, "longdashdot", False),
    "f1": ("F1", FIRST, "dot", False),
    "f1_macro": ("F1, macro", FIRST, "dashdot", False),
    "f1_micro": ("F1, micro", FIRST, "longdash", False),
    "nmi": ("NMI", SECOND, "dash", False),
    "purity": ("purity", SECOND, "dot", False),
}
ERRORS = {
    "loss": ("loss", FIRST, "solid", True),
    "train_loss": ("training loss", FIRST, "solid", True),
    "validation_loss": ("validation loss", SECOND, "longdash", True),
    "distance": ("distance", SECOND, "solid", True),
    "distance_nearest": ("distance, nearest", SECOND, "dash", True),
}
THREATS = {
    "attackers_accuracy": ("accuracy of attackers", FIRST, "dash", False),
    "attacker_share": ("largest share of attackers in a cluster", SECOND, "solid", True),
    "excluded": ("share excluded", FIRST, "dot", False),
    "detection_precision": ("precision of the exclusion", FIRST, "solid", True),
    "detection_recall": ("recall of the exclusion", FIRST, "dashdot", True),
    "false_exclusion": ("share of the honest excluded", SECOND, "dash", True),
}
LABELS = {key: label for key, (label, *_) in (SCORES | ERRORS | THREATS).items()}
LABELS |= {"attacking_teachers": "attackers who taught a first model"}


def label_of(key: str) -> str:
    """What a metric is called on a page."""
    return LABELS.get(key) or metric_label(key)


def score_curves(rounds: Sequence[Round]) -> Figure | None:
    """Metrics for which one is best, over the rounds; None where no round has any."""
    return _lines(_metrics(rounds, SCORES), "score", bounded=True)


def error_curves(rounds: Sequence[Round]) -> Figure | None:
    """Metrics for which zero is best, over the rounds; None where no round has any.

    The lowest validation loss is marked where a run went by it.
    """
    traces = _metrics(rounds, ERRORS)
    far = any("distance" in trace["name"] for trace in traces)
    title = "loss and distance" if far else "loss"
    return _lines([*traces, *best_round_mark(rounds)], title)


def selection_curve(selection: Mapping[str, Any]) -> Figure | None:
    """The validation loss over the values of a setting, with the errors by which one is chosen."""
    if not selection:
        return None
    points = list(zip(selection["values"], selection["validation_loss"], strict=True))
    line = curve(points, "validation loss", SECOND)
    taken = curve([p for p in points if p[0] == selection["taken"]], "taken", SECOND)
    if line is None or taken is None:
        return None
    named = any(isinstance(value, str) for value in selection["values"])
    bars = {"type": "data", "array": [round_digits(e) for e in selection["standard_error"]]}
    marker = {"size": 13, "symbol": "star", "color": SECOND, "line": {"width": 0}}
    return {
        "data": [
            {**line, "mode": "lines+markers", "error_y": {**bars, "color": SECOND}},
            {**taken, "mode": "markers", "marker": marker},
        ],
        "layout": {
            "xaxis": {
                "title": {"text": selection["setting"]},
                "showgrid": False,
                **({"type": "category"} if named else {}),
            },
            "yaxis": {"title": {"text": "validation loss"}},
        },
    }


def best_round_mark(rounds: Sequence[Round]) -> list[Trace]:
    """The point of the best round on the curve of the validation loss; none without one."""
    best = next((r["best_round"] for r in reversed(rounds) if r.get("best_round")), None)
    points = [(n, y) for n, y in _values(rounds, "validation_loss") if n == best]
    point = curve(points, f"best round, {best}", SECOND)
    if point is None:
        return []
    marker = {"size": 13, "symbol": "star", "color": SECOND, "line": {"width": 0}}
    return [{**point, "mode": "markers", "marker": marker}]


def threat_curves(rounds: Sequence[Round]) -> Figure | None:
    """What attackers do and how well they are kept out, over the rounds; None without any."""
    return _lines(_metrics(rounds, THREATS), "share", bounded=True)


def own_metrics(histories: Iterable[Sequence[Round]]) -> list[str]:
    """The names of the algorithms' own metrics in rounds, in the order in which they came.

    The number of the cluster round is left out: its curve would be a staircase.
    """
    names = (n for rounds in histories for r in rounds for n in r.get("metrics") or {})
    return [name for name in dict.fromkeys(names) if name not in FIXED_METRICS | {CLUSTER_ROUND}]


def own_curves(rounds: Sequence[Round]) -> dict[str, Figure]:
    """A chart for each metric of the algorithm's own, by its name."""
    curves = {name: curve(_values(rounds, name), name, FIRST) for name in own_metrics([rounds])}
    figures = {name: _lines([each], name) for name, each in curves.items() if each is not None}
    return {name: figure for name, figure in figures.items() if figure is not None}


def cluster_curves(rounds: Sequence[Round], key: str, drawn: Sequence[int]) -> Figure | None:
    """A metric of the clients of each cluster, over the rounds; None where none was recorded."""
    known = [(r["round"], (r.get("by_cluster") or {}).get(key) or []) for r in rounds]
    traces = []
    for cluster in drawn:
        points = [(n, row[cluster] if cluster < len(row) else None) for n, row in known]
        dash = ("solid", "dash")[cluster // len(PALETTE) % 2]  # colours repeat, not both
        traces.append(curve(points, f"cluster {cluster}", colour(cluster), dash))
    shown = [trace for trace in traces if trace is not None]
    return _lines(shown, key, bounded=key == "accuracy")


def mean_curves(groups: Mapping[str, Sequence[Sequence[Round]]], key: str) -> Figure | None:
    """A metric of several groups of runs: the mean of each, in a band of one standard deviation.

    A group is drawn over the rounds in which all of its runs have a value.
    """
    traces: list[Trace] = []
    for place, (name, runs) in enumerate(groups.items()):
        each = [{n: y for n, y in _values(rounds, key) if y is not None} for rounds in runs]
        numbers = sorted(set.intersection(*map(set, each))) if each else []
        means = [sum(run[n] for run in each) / len(each) for n in numbers]
        dash = ("solid", "dash")[place // len(PALETTE) % 2]
        line = curve(list(zip(numbers, means, strict=True)), name, colour(place), dash)
        if line is None:
            continue
        if len(each) > 1:
            squares = [
                sum((run[n] - m) ** 2 for run in each) / (len(each) - 1)
                for n, m in zip(numbers, means, strict=True)
            ]
            traces.append(_band(numbers, means, [s**0.5 for s in squares], place, name))
        traces.append({**line, "legendgroup": name})
    return _lines(traces, label_of(key), bounded=key in SCORES)


def mean_points(groups: Mapping[str, Mapping[str, Sequence[float]]], key: str) -> Figure | None:
    """A metric at the end of runs: the mean of each group with its standard deviation as a bar.

    `groups` are values by federation and algorithm; None where there is no value.
    """
    traces: list[Trace] = []
    for place, (federation, labels) in enumerate(groups.items()):
        known = {label: values for label, values in labels.items() if values}
        if not known:
            continue
        spread = [stdev(values) if len(values) > 1 else 0.0 for values in known.values()]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": federation,
                "x": list(known),
                "y": [round_digits(mean(values)) for values in known.values()],
                "error_y": {"type": "data", "array": [round_digits(each) for each in spread]},
                "marker": {"size": 9, "color": colour(place)},
                "hovertemplate": "%{y:.4~g}",
            }
        )
    axis = {"title": {"text": label_of(key)}}
    layout = {"xaxis": {"type": "category"}, "yaxis": axis, "scattermode": "group"}
    return {"data": traces, "layout": layout} if traces else None


def confusion_matrix(table: dict[str, Any], counted: str) -> Figure:
    """Found against true clusters; the page shows this as a table, a paper as a picture."""
    rows = table["rows"]
    overlaps = [row["overlaps"] for row in rows]
    true, found = [str(label) for label in table["truths"]], [str(row["label"]) for row in rows]
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [[n / max(1, sum(row)) for n in row] for row in overlaps],
                "x": true,
                "y": found,
                "text": overlaps,
                "texttemplate": "%{text}",
                "zmin": 0,
                "zmax": 1,
                "colorscale": [[0, "#ffffff"], [1, FIRST]],
                "showscale": False,
                "showlegend": False,
                "xgap": 1,
                "ygap": 1,
            }
        ],
        "layout": {
            "width": 160 + 48 * len(true),
            "height": 120 + 36 * len(rows),
            "xaxis": {"type": "category", "title": {"text": f"true cluster ({counted})"}},
            "yaxis": {"type": "category", "autorange": "reversed", "title": {"text": "found"}},
        },
    }


def traffic_bars(rounds: Sequence[Round]) -> Figure | None:
    """Bytes down to and up from the clients, in each round; None where no round counted any."""
    ways = (("bytes_down", "to the clients", FIRST), ("bytes_up", "from the clients", SECOND))
    axis = {"tickformat": "~s", "ticksuffix": "B"}
    return _bars(rounds, ways, axis, "%{y:.3s}B")


def time_bars(rounds: Sequence[Round]) -> Figure | None:
    """Seconds that each round took, evaluation included; None where no round was timed."""
    return _bars(rounds, (("seconds", "time", FIRST),), {"ticksuffix": " s"}, "%{y:.3g} s")


def curve(points: Points, name: str, hue: str, dash: str = "solid") -> Trace | None:
    """A line through the points that are finite; None where none is."""
    kept = [(n, y) for n, y in points if y is not None and math.isfinite(y)]
    if not kept:
        return None
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(kept) <= 30 else "lines",
        "name": name,
        "x": [n for n, _ in kept],
        "y": [round_digits(y) for _, y in kept],
        "line": {"color": hue, "dash": dash, "width": 2},
        "marker": {"size": 6, "line": {"width": 0}},
        "hovertemplate": "%{y:.4~g}",
    }


def round_axis(numbers: Sequence[int], title: str = "round") -> dict[str, Any]:
    """A horizontal axis of rounds, or of something else that is counted."""
    axis: dict[str, Any] = {
        "title": {"text": title},
        "tickformat": "d",
        "showgrid": False,
        "unifiedhovertitle": {"text": f"{title} %{{x}}"},
    }
    if numbers[-1] - numbers[0] <= 10:
        axis["dtick"] = 1
    return axis


def round_digits(value: float | None) -> float | None:
    """Five digits: finer than a screen shows, and they keep thousands of points small."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _values(rounds: Sequence[Round], key: str) -> Points:
    return [(r["round"], (r.get("metrics") or {}).get(key)) for r in rounds]


def _metrics(
    rounds: Sequence[Round], metrics: dict[str, tuple[str, str, str, bool]]
) -> list[Trace]:
    traces = []
    for key, (label, hue, dash, shown) in metrics.items():
        trace = curve(_values(rounds, key), label, hue, dash)
        if trace is not None:
            traces.append({**trace, "visible": shown})
    return traces


def _lines(traces: list[Trace], title: str, *, bounded: bool = False) -> Figure | None:
    """A chart of curves; None if there is none. `bounded` values are between -1 and 1."""
    if not traces:
        return None
    values = [value for trace in traces for value in trace["y"]]
    numbers = sorted({number for trace in traces for number in trace["x"]})
    axis: dict[str, Any] = {"rangemode": "tozero"}
    if bounded:
        axis = {"autorangeoptions": {"clipmin": -1.02, "clipmax": 1.02}}
    elif min(values) > 0 and max(values) > 50 * min(values):
        # A fall over orders of magnitude would be a corner and a flat line on a linear scale.
        axis = {"type": "log", "dtick": 1}
    return {
        "data": traces,
        "layout": {
            "hovermode": "x unified",
            "xaxis": round_axis(numbers),
            "yaxis": {**axis, "title": {"text": title}},
        },
    }


def _band(
    numbers: list[int], means: list[float], width: list[float], place: int, name: str
) -> Trace:
    """One closed shape from the mean minus the deviation to the mean plus it."""
    upper = [round_digits(m + w) for m, w in zip(means, width, strict=True)]
    lower = [round_digits(m - w) for m, w in zip(means, width, strict=True)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": False,
        "x": [*numbers, *reversed(numbers)],
        "y": [*upper, *reversed(lower)],
        "fill": "toself",
        "fillcolor": colour(place) + "30",
        "line": {"width": 0, "color": colour(place)},
        "hoverinfo": "skip",
    }


def _bars(
    rounds: Sequence[Round], parts: Sequence[tuple[str, str, str]], axis: dict[str, Any], hover: str
) -> Figure | None:
    """Stacked bars over the rounds, of parts (key, name, colour)."""
    counted = [r for r in rounds if any(r.get(key) for key, *_ in parts)]
    if not counted:
        return None
    numbers = [r["round"] for r in counted]
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": numbers,
                "y": [round_digits(r.get(key) or 0) for r in counted],
                "marker": {"color": hue, "line": {"width": 0}},
                "hovertemplate": hover,
                **({"width": 0.4} if len(counted) == 1 else {}),
            }
            for key, name, hue in parts
        ],
        "layout": {
            "barmode": "stack",
            "bargap": 0.25 if len(counted) <= 80 else 0,
            "hovermode": "x unified",
            "xaxis": round_axis(numbers),
            "yaxis": {**axis, "rangemode": "tozero"},
        },
    }
