"""How clients moved between clusters: sizes over the rounds, and flows between a few of them."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from coterie.report.figures import Figure, Round, Trace, round_axis
from coterie.report.palette import OTHER, colour

STOPS = 6  # rounds that flows are drawn between
HEIGHT = 300  # pixels that the streams take, about; gaps between clusters are meant for it
LABELLED = 12  # clusters in one round whose numbers do not run into each other
NOBODY, REST = -1, -2  # clients that were in no cluster yet; clusters that have no colour


def last_move(rounds: Sequence[Round]) -> int | None:
    """The last round in which a client changed its cluster; None where no move was recorded."""
    moving = [r["round"] for r in rounds if any((r.get("moves") or {}).values())]
    return moving[-1] if moving else None


def sizes_figure(
    rounds: Sequence[Round], drawn: Sequence[int], counted: str = "clients", over: str = "round"
) -> Figure:
    """What is `counted` in each cluster over the rounds, stacked.

    Clusters not in `drawn` are one layer.
    """
    numbers = [r["round"] for r in rounds]
    table = [r.get("sizes") or [] for r in rounds]
    layers = [
        (f"cluster {c}", colour(c), [row[c] if c < len(row) else 0 for row in table]) for c in drawn
    ]
    rest = [sum(row) - sum(row[c] for c in drawn if c < len(row)) for row in table]
    if any(rest):
        layers.append(("other clusters", OTHER, rest))
    return {
        "data": [_layer(numbers, values, name, hue) for name, hue, values in layers],
        "layout": {
            "barmode": "stack",
            "hovermode": "x unified",
            "xaxis": round_axis(numbers, over),
            "yaxis": {"title": {"text": counted}, "rangemode": "tozero"},
        },
    }


def flows_figure(rounds: Sequence[Round], drawn: Sequence[int]) -> Figure | None:
    """Streams of clients from cluster to cluster, between a few rounds; None where nobody moved."""
    where: dict[int, int] = {}  # client -> cluster
    moved = False
    stops = set(flow_rounds(rounds))
    columns: list[tuple[int, dict[int, int]]] = []
    for r in rounds:
        for cluster, members in (r.get("moves") or {}).items():
            label = int(cluster) if int(cluster) in drawn else REST
            moved = moved or any(i in where and where[i] != label for i in members)
            where |= dict.fromkeys(members, label)
        if r["round"] in stops:
            columns.append((r["round"], dict(where)))
    if not moved or len(columns) < 2:
        return None
    return _sankey(columns, [*drawn, REST, NOBODY])


def flow_rounds(rounds: Sequence[Round], count: int = STOPS) -> list[int]:
    """Rounds to stop at: the first, the last, and between them as clients settle, ever rarer."""
    last, end = last_move(rounds), len(rounds)
    if last is None:
        return []
    inner = count - 1 if last < rounds[-1]["round"] else count
    still = next(i for i, r in enumerate(rounds, 1) if r["round"] == last)
    places = {round(still ** (i / (inner - 1))) for i in range(inner)} | {1, end}
    return [rounds[place - 1]["round"] for place in sorted(places)]


def _sankey(columns: Sequence[tuple[int, dict[int, int]]], order: Sequence[int]) -> Figure:
    everybody = columns[-1][1]
    counts = [
        Counter({NOBODY: len(everybody) - len(where)}) + Counter(where.values())
        for _, where in columns
    ]
    nodes = [(i, c) for i, count in enumerate(counts) for c in order if count[c]]
    most = max(map(len, counts))
    pad = min(8, HEIGHT // 3 // most)  # at most a third of the height is gaps
    index = {node: place for place, node in enumerate(nodes)}
    streams = Counter(
        (i, before.get(client, NOBODY), after.get(client, NOBODY))
        for i, ((_, before), (_, after)) in enumerate(pairwise(columns))
        for client in everybody
    )
    ordered = sorted(streams, key=lambda s: (s[0], index[s[0], s[1]], index[s[0] + 1, s[2]]))
    trace: Trace = {
        "type": "sankey",
        "arrangement": "fixed",
        "node": {
            "label": ["" if c < 0 or most > LABELLED else str(c) for _, c in nodes],
            "color": [colour(c) for _, c in nodes],
            "customdata": [f"{_name(c)}, round {columns[i][0]}" for i, c in nodes],
            "hovertemplate": "%{customdata}<br>%{value:,d} clients<extra></extra>",
            "x": [_inside(i / (len(columns) - 1)) for i, _ in nodes],
            "y": _heights(nodes, counts, gap=pad / HEIGHT),
            "pad": pad,
            "thickness": 12,
            "line": {"width": 0},
        },
        "link": {
            "source": [index[i, a] for i, a, _ in ordered],
            "target": [index[i + 1, b] for i, _, b in ordered],
            "value": [streams[stream] for stream in ordered],
            "color": [colour(b) + ("50" if a == b else "A0") for _, a, b in ordered],
            "customdata": [
                f"{'stayed in' if a == b else f'{_name(a)} to'} {_name(b)},<br>"
                f"rounds {columns[i][0]} to {columns[i + 1][0]}"
                for i, a, b in ordered
            ],
            "hovertemplate": "%{customdata}<br>%{value:,d} clients<extra></extra>",
        },
    }
    headings = _headings([number for number, _ in columns])
    return {"data": [trace], "layout": {"annotations": headings, "margin": {"t": 28}}}


def _headings(rounds: Sequence[int]) -> list[dict[str, Any]]:
    """Which round each column of the flows is, above it."""
    last = len(rounds) - 1
    return [
        {
            "text": f"round {number}" if i == 0 else str(number),
            "x": i / last,
            "xanchor": ["left", "center", "right"][(i > 0) + (i == last)],
            "y": 1.02,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for i, number in enumerate(rounds)
    ]


def _heights(
    nodes: Sequence[tuple[int, int]], counts: Sequence[Counter[int]], gap: float
) -> list[float]:
    """The middle of each node from the top down, all columns to one scale."""
    scale = (1 - gap * (max(map(len, counts)) - 1)) / sum(counts[-1].values())
    heights, column, top = [], -1, 0.0
    for i, cluster in nodes:
        if i != column:
            column, top = i, 0.0
        size = counts[i][cluster] * scale
        heights.append(_inside(top + size / 2))
        top += size + gap
    return heights


def _inside(share: float) -> float:
    # Plotly takes a place of exactly 0 for one that was not given.
    return round(min(max(share, 0.001), 0.999), 4)


def _name(cluster: int) -> str:
    return {NOBODY: "no cluster yet", REST: "other clusters"}.get(cluster, f"cluster {cluster}")


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
