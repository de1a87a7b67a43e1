"""Cluster rounds: several rounds that fit models to the same clusters, before these change.

An algorithm that has them, as UIFCA, tells the number of each as its metric `cluster_round`.
"""

from collections.abc import Sequence
from typing import Any

from coterie.report.figures import CLUSTER_ROUND, SECOND, Figure, Round, curve, round_axis


def by_cluster_round(rounds: Sequence[Round]) -> list[Round]:
    """A record for each cluster round, under its number: the last sizes and metrics in it.

    Empty where rounds tell of none.

    >>> rounds = [{"round": r, "metrics": {"cluster_round": (r + 1) // 2}} for r in (1, 2, 3)]
    >>> [r["round"] for r in by_cluster_round(rounds)]
    [1, 2]
    """
    merged: dict[int, Round] = {}
    for r in rounds:
        metrics: dict[str, Any] = r.get("metrics") or {}
        if metrics.get(CLUSTER_ROUND) is not None:
            number = int(metrics[CLUSTER_ROUND])
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
