"""Cluster rounds: where an algorithm fits models for several rounds between two changes of clusters.

Such an algorithm tells the number of the cluster round as its metric `cluster_round`.
"""

from collections.abc import Sequence
from typing import Any

from coterie.report.figures import SECOND, Figure, Round, curve, round_axis

METRIC = "cluster_round"


def by_cluster_round(rounds: Sequence[Round]) -> list[Round]:
    """A record for each cluster round, under its number: the last sizes and metrics in it.

    Empty where rounds tell of none.

    >>> told = [{"round": r, "metrics": {METRIC: (r + 1) // 2, "purity": r / 4}} for r in (1, 2, 3)]
    >>> [(r["round"], r["metrics"]["purity"]) for r in by_cluster_round(told)]
    [(1, 0.5), (2, 0.75)]
    """
    merged: dict[int, Round] = {}
    for r in rounds:
        metrics: dict[str, Any] = r.get("metrics") or {}
        if metrics.get(METRIC) is not None:
            number = int(metrics[METRIC])
            before = merged.get(number, {}).get("metrics", {})
            merged[number] = {**r, "round": number, "metrics": {**before, **metrics}}
    return list(merged.values())


def purity_figure(cluster_rounds: Sequence[Round]) -> Figure | None:
    """Purity after each cluster round; None where none is known."""
    points = [(r["round"], r["metrics"].get("purity")) for r in cluster_rounds]
    line = curve(points, "purity", SECOND)
    if line is None:
        return None
    return {
        "data": [line],
        "layout": {
            "hovermode": "x unified",
            "xaxis": round_axis(line["x"], "cluster round"),
            "yaxis": {"title": {"text": "purity"}, "range": [0, 1.02]},
        },
    }
