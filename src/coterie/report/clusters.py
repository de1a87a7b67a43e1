"""Which clusters a run found, how they are drawn, and what each of them holds."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.report.figures import Columns, Round
from coterie.report.palette import OTHER, Label, colour, match_clusters, sort_labels

# More layers or legend entries than this cannot be told apart; the rest is drawn as one.
DRAWN = 24


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
    known = [r["sizes"] for r in rounds if r.get("sizes")]
    last = dict(enumerate(known[-1])) if known else dict(members)
    found = sorted({*range(max(map(len, known), default=0)), *members})
    own = not samples and len(last) > 1 and all(size == 1 for size in last.values())
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

    The columns of the truth are ordered as their matching rows, so that a right grouping is a
    diagonal whatever the numbers of the clusters are.
    """
    cluster: list[Label] = columns["cluster"]
    true: list[Label] = columns.get("true") or []
    matched = match_clusters(cluster, true) if true else {}
    overlaps = Counter(zip(cluster, true, strict=True)) if true else Counter()
    truths = sorted(matched, key=lambda label: matched[label])
    rows = []
    for label in sort_labels(cluster):
        inside = [row for row, other in enumerate(cluster) if other == label]
        rows.append(
            {
                "label": label,
                "colour": groups.colours.get(label, OTHER),
                "clients": len(inside),
                "samples": sum(columns["samples"][row] or 0 for row in inside),
                "accuracy": _mean(columns.get("accuracy"), inside),
                "loss": _mean(columns.get("loss"), inside),
                "overlaps": [overlaps[label, truth] for truth in truths],
            }
        )
    return {"truths": truths, "scored": columns.get("accuracy") is not None, "rows": rows}


def sample_table(samples: Columns) -> dict[str, Any]:
    """One row for each found cluster of samples: its size, its clients, and its true clusters."""
    matched = match_sample_clusters(samples)
    truths = sorted(matched, key=lambda label: matched[label])
    places = [samples["true"].index(truth) for truth in truths]
    rows = [
        {
            "label": label,
            "colour": colour(label),
            "samples": samples["samples"][row],
            "clients": samples["clients"][row],
            "overlaps": [samples["overlaps"][row][place] for place in places],
        }
        for row, label in enumerate(samples["cluster"])
    ]
    return {"truths": truths, "rows": rows}


def match_sample_clusters(samples: Columns) -> dict[Label, int]:
    """Give every true cluster of samples the index of the found cluster it overlaps most."""
    true = samples.get("true") or []
    pairs = [
        (count, row, place)
        for row, counts in enumerate(samples.get("overlaps") or [])
        for place, count in enumerate(counts)
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    matched: dict[int, int] = {}
    for _, row, place in pairs:
        if place not in matched and row not in matched.values():
            matched[place] = row
    left = (place for place in range(len(true)) if place not in matched)
    matched |= {place: len(samples["cluster"]) + i for i, place in enumerate(left)}
    return {label: matched[place] for place, label in enumerate(true)}


def _mean(values: Sequence[float | None] | None, rows: Sequence[int]) -> float | None:
    if values is None:
        return None
    chosen = [value for value in (values[row] for row in rows) if value is not None]
    finite = [value for value in chosen if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
