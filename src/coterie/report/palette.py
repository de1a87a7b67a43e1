"""Colours and shapes of clusters, the same in every chart and table of the page."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

Label = int | str | None

# Okabe and Ito's colours without black, which a dark page would swallow, then five of Paul Tol's
# that stay apart from them for colour-blind readers and visible on white and near-black alike.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7",
    "#D6C400", "#7F6BC9", "#999933", "#AA4466", "#44AA99", "#A6761D",
)  # fmt: skip
OTHER = "#8B929C"

# The plotly name of each shape, and the character that stands for it in a caption.
SHAPES = {
    "circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲",
    "triangle-down": "▼", "cross": "✚", "x": "✖", "star": "★",
}  # fmt: skip


def colour(cluster: Label) -> str:
    """Colour of a cluster by its index; colours repeat after twelve, and no index is grey.

    >>> colour(0), colour(12), colour(None)
    ('#0072B2', '#0072B2', '#8B929C')
    """
    if not isinstance(cluster, int) or cluster < 0:
        return OTHER
    return PALETTE[cluster % len(PALETTE)]


def sort_labels(labels: Sequence[Label]) -> list[Label]:
    """Distinct labels: numbers in order, then strings in order, then the missing one."""
    return sorted(set(labels), key=lambda label: (label is None, isinstance(label, str), label))


def match_clusters(found: Sequence[Label], true: Sequence[Label]) -> dict[Label, int]:
    """Give every true cluster the index of the found cluster it overlaps most, each index once.

    True clusters are numbered by the data and found ones by chance, so without this a perfect
    grouping would change all its colours between the two views. True clusters left over take
    indices that no found cluster has.

    >>> match_clusters([1, 1, 0, 0], ["a", "a", "b", "b"])
    {'a': 1, 'b': 0}
    """
    return match_overlaps(Counter(zip(found, true, strict=True)), sort_labels(true))


def match_overlaps(
    overlaps: Counter[tuple[Label, Label]], true: Sequence[Label]
) -> dict[Label, int]:
    """The index of the found cluster that goes with every true one, by (found, true) overlaps."""
    matched: dict[Label, int] = {}
    for (cluster, label), _ in overlaps.most_common():
        if isinstance(cluster, int) and cluster not in matched.values():
            matched.setdefault(label, cluster)
    highest = max((cluster for cluster, _ in overlaps if isinstance(cluster, int)), default=-1)
    unused = count(highest + 1)
    return {label: matched[label] if label in matched else next(unused) for label in true}
