"""The clusters a run found: how they are drawn, what each holds, and whom they serve worst."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.report.figures import Columns, Round
from coterie.report.number_format import MISSING
from coterie.report.palette import OTHER, Label, colour, match_clusters, match_overlaps, sort_labels

# More layers or legend entries than this cannot be told apart; the rest is drawn as one.
DRAWN = 24
WORST_SHOWN = 10  # clients that are served worst


@dataclass(frozen=True)
class Grouping:
    """The clusters of a run: all that were found, and the colours of those that are drawn."""

    found: list[int]
    drawn: list[int]  # the largest of `found`, by index
    occupied: int  # clusters with a client at the end
    own: bool  # every client is alone in a cluster
    colours: dict[Label, str]  # of the found clusters that are drawn
    true: list[Label]  # every true cluster; empty where they are unknown
    true_colours: dict[Label, str]  # of the largest true clusters


def group_clusters(
    rounds: Sequence[Round], clients: Columns | None, samples: Columns | None = None
) -> Grouping:
    """Read the clusters off the last sizes, or off the clients where no round gave sizes.

    Where `samples` are clustered, their true clusters are meant, and no client is a cluster.
    """
    cluster: list[Label] = clients["cluster"] if clients else []
    true: list[Label] = (clients.get("true") if clients else None) or []
    members = Counter(label for label in cluster if isinstance(label, int) and label >= 0)
    counted = [r for r in rounds if r.get("counted") == "samples"]
    known = [r["sizes"] for r in counted or rounds if r.get("sizes")]
    last = dict(enumerate(known[-1])) if known else dict(members)
    found = sorted({*range(max(map(len, known), default=0)), *members})
    own = not samples and not counted and len(last) > 1 and all(size == 1 for size in last.values())
    largest = sorted(found, key=lambda c: (-last.get(c, 0), c))[:DRAWN]
    # Thousands of clusters match a few arbitrarily, so there the true ones are coloured in order.
    indices = (
        {t: i for i, t in enumerate(sort_labels(true))}
        if own or not true
        else match_clusters(cluster, true)
    )
    largest_true = [label for label, _ in Counter(true).most_common(DRAWN)]
    if samples:
        indices = match_sample_clusters(samples)
        largest_true = list(indices)[:DRAWN]
    return Grouping(
        found=found,
        drawn=[] if own else sorted(largest),
        occupied=sum(size > 0 for size in last.values()),
        own=own,
        colours={} if own else {c: colour(c) for c in sorted(largest)},
        true=list(indices),
        true_colours={t: colour(i) for t, i in indices.items() if t in largest_true},
    )


def cluster_table(columns: Columns, groups: Grouping) -> dict[str, Any]:
    """One row for each found cluster: its clients, samples, means, and overlap with the truth.

    The last row is of clients whose cluster is not known, if there are any.

    The columns of the truth are ordered as their matching rows, so that a right grouping is a
    diagonal whatever the numbers of the clusters are.
    """
    cluster: list[Label] = columns["cluster"]
    true: list[Label] = columns.get("true") or []
    attackers = columns.get("attacker") or [False] * len(cluster)
    matched = match_clusters(cluster, true) if true else {}
    overlaps = Counter(zip(cluster, true, strict=True)) if true else Counter()
    truths = sorted(matched, key=lambda label: matched[label])
    rows = []
    for label in sort_labels(cluster):
        inside = [row for row, other in enumerate(cluster) if other == label]
        rows.append(
            {
                "label": MISSING if label is None else label,
                "colour": groups.colours.get(label, OTHER),
                "clients": len(inside),
                "samples": sum(columns["samples"][row] or 0 for row in inside),
                "accuracy": _mean(columns.get("accuracy"), inside),
                "loss": _mean(columns.get("loss"), inside),
                "attackers": sum(attackers[row] for row in inside),
                "overlaps": [overlaps[label, truth] for truth in truths],
            }
        )
    return {
        "truths": truths,
        "scored": columns.get("accuracy") is not None,
        "attacked": columns.get("attacker") is not None,
        "rows": rows,
    }


def sample_table(samples: Columns) -> dict[str, Any]:
    """One row for each found cluster of samples: size, clients, mean loss, and true clusters."""
    matched = match_sample_clusters(samples)
    truths = sorted(matched, key=lambda label: matched[label])
    places = [samples["true"].index(truth) for truth in truths]
    losses = samples.get("loss") or [None] * len(samples["cluster"])
    rows = [
        {
            "label": label,
            "colour": colour(label),
            "samples": samples["samples"][row],
            "clients": samples["clients"][row],
            "loss": losses[row],
            "overlaps": [samples["overlaps"][row][place] for place in places],
        }
        for row, label in enumerate(samples["cluster"])
    ]
    return {"truths": truths, "scored": any(loss is not None for loss in losses), "rows": rows}


def worst_served(columns: Columns | None, groups: Grouping) -> dict[str, Any] | None:
    """Rows for the clients with the lowest accuracy, or the highest loss where it is not known.

    Each has the mean of its cluster beside it. None where there are too few clients to choose from.
    """
    if not columns or len(columns["client"]) <= WORST_SHOWN:
        return None
    key = "loss" if columns.get("accuracy") is None else "accuracy"
    values: Sequence[float | None] = columns.get(key) or []
    known = [(float(v), row) for row, v in enumerate(values) if v is not None and math.isfinite(v)]
    known.sort(key=lambda pair: pair[0] if key == "accuracy" else -pair[0])
    cluster = columns["cluster"]
    means = {
        label: sum(inside) / len(inside)
        for label in {cluster[row] for _, row in known[:WORST_SHOWN]}
        for inside in [[value for value, row in known if cluster[row] == label]]
    }
    names = columns.get("name") or columns["client"]
    true, attackers = columns.get("true"), columns.get("attacker")
    return {
        "key": key,
        "true": true is not None,
        "attacked": attackers is not None,
        "rows": [
            {
                "name": names[row],
                "samples": columns["samples"][row],
                "cluster": MISSING if cluster[row] is None else cluster[row],
                "colour": groups.colours.get(cluster[row], OTHER),
                "true": true[row] if true else None,
                "true_colour": groups.true_colours.get(true[row], OTHER) if true else OTHER,
                "attacks": "yes" if attackers and attackers[row] else "no",
                "value": value,
                "mean": None if groups.own else means[cluster[row]],
            }
            for value, row in known[:WORST_SHOWN]
        ],
    }


def match_sample_clusters(samples: Columns) -> dict[Label, int]:
    """Give every true cluster of samples the index of the found cluster it overlaps most."""
    true = samples.get("true") or []
    overlaps: Counter[tuple[Label, Label]] = Counter(
        {
            (row, label): count
            for row, counts in enumerate(samples.get("overlaps") or [])
            for label, count in zip(true, counts, strict=True)
        }
    )
    return match_overlaps(overlaps, true)


def _mean(values: Sequence[float | None] | None, rows: Sequence[int]) -> float | None:
    if values is None:
        return None
    chosen = (values[row] for row in rows)
    finite = [value for value in chosen if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
