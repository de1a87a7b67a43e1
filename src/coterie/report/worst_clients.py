"""The clients that are served worst."""

import math
from collections.abc import Sequence
from typing import Any

from coterie.report.clusters import Grouping
from coterie.report.figures import Columns
from coterie.report.palette import OTHER

SHOWN = 10


def worst_served(columns: Columns | None, groups: Grouping) -> dict[str, Any] | None:
    """Rows for the clients with the lowest accuracy, or the highest loss where it is not known.

    Each has the mean of its cluster beside it. None where there are too few clients to choose from.
    """
    if not columns or len(columns["client"]) <= SHOWN:
        return None
    key = "loss" if columns.get("accuracy") is None else "accuracy"
    values: Sequence[float | None] = columns.get(key) or []
    known = [(float(v), row) for row, v in enumerate(values) if v is not None and math.isfinite(v)]
    known.sort(key=lambda pair: pair[0] if key == "accuracy" else -pair[0])
    cluster = columns["cluster"]
    means = {
        label: sum(inside) / len(inside)
        for label in {cluster[row] for _, row in known[:SHOWN]}
        for inside in [[value for value, row in known if cluster[row] == label]]
    }
    names = columns.get("name") or columns["client"]
    true = columns.get("true")
    return {
        "key": key,
        "true": true is not None,
        "rows": [
            {
                "name": names[row],
                "samples": columns["samples"][row],
                "cluster": cluster[row],
                "colour": groups.colours.get(cluster[row], OTHER),
                "true": true[row] if true else None,
                "true_colour": groups.true_colours.get(true[row], OTHER) if true else OTHER,
                "value": value,
                "mean": None if groups.own else means[cluster[row]],
            }
            for value, row in known[:SHOWN]
        ],
    }
