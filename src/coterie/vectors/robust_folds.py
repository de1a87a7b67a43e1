"""Robust means per cluster: the fold that takes the place of one that adds.

What clients sent must be held until all have answered, and the server sees the upload of every
client: such a fold does not add, so that nodes and clusters cannot be left to themselves.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.clients import step_name
from coterie.core.errors import CoterieWarning, SettingError
from coterie.tensors.lazy import DisplacementFormula, Lazy, dense
from coterie.vectors import robust
from coterie.vectors.cluster_sums import ClusterSums, Message, block_origins, finish_sums
from coterie.vectors.folds import ByCluster
from coterie.vectors.robust import RowGroup

# The share of wrong clients in a cluster that each rule is set to withstand; others need none.
TOLERATED = {"trimmed": 0.3, "krum": 0.3, "multi-krum": 0.3, "bulyan": 0.2}
AGGREGATES = ("mean", "median", "geometric-median", "clip", *TOLERATED)
SELECTING = {"krum": robust.krum, "multi-krum": robust.multi_krum, "bulyan": robust.bulyan}


@dataclass(frozen=True)
class RobustMean:
    """A robust mean of rows [n, d]: its rule, and the share of rows it is to withstand."""

    rule: str
    tolerate: float = 0.0  # 0: that of TOLERATED

    def wrong_rows(self, n: int) -> int:
        """How many of n rows may be wrong.

        >>> RobustMean("trimmed", 0.25).wrong_rows(11)
        2
        """
        return int((self.tolerate or TOLERATED.get(self.rule, 0.0)) * n)

    def withstood(self, n: int) -> int:
        """How many of n wrong rows the rule withstands: as many as it should, or as it can."""
        f = self.wrong_rows(n)
        while f > 0 and n < robust.least_rows(self.rule, f):
            f -= 1
        return f

    def trimmed_values(self, n: int) -> int:
        """How many of n values median and trimmed leave out at each end of a coordinate."""
        return (n - 1) // 2 if self.rule == "median" else self.withstood(n)

    def check_clients(self, n: int) -> None:
        """Refuse a rule for which n clients are too few, were they all in one cluster."""
        f = max(self.wrong_rows(n), 1 if self.rule in TOLERATED else 0)
        least = robust.least_rows(self.rule, f)
        if n < least:
            raise SettingError(
                f"`aggregate` {self.rule} needs at least {least} clients in a round to withstand "
                f"{f} of them, got {n}"
            )

    def warn_of_few(self, n: int) -> None:
        """Say what becomes of a rule in a cluster of n clients, where these are too few for it."""
        f, withstood = self.wrong_rows(n), self.withstood(n)
        if n < robust.least_rows(self.rule, withstood):
            text = f"takes the median of the {n} clients of a cluster: it has too few"
        elif withstood < f:
            text = (
                f"withstands {withstood} of the {n} clients of a cluster, not {f}: it has too few"
            )
        else:
            return
        warnings.warn(f"aggregate={self.rule} {text}", CoterieWarning, stacklevel=2)

    def of_rows(self, rows: Tensor) -> Tensor:
        """The robust mean [d] of rows [n, d], which are displacements; n is at least 1."""
        n, f = len(rows), self.withstood(len(rows))
        if self.rule in SELECTING and n < robust.least_rows(self.rule, f):
            return robust.coordinate_median(rows)
        if self.rule in SELECTING:
            return SELECTING[self.rule](rows, f)
        if self.rule == "geometric-median":
            return robust.geometric_median(rows)
        assert self.rule == "clip", self.rule
        return robust.clipped_mean(rows)


class FieldRows(NamedTuple):
    """A field of some clients' uploads, and what is yet to be subtracted from it."""

    value: Tensor  # [c, d]
    origin: Tensor | None  # [k, d] a row for each cluster; None: nothing
    cluster: Tensor  # [c]

    def displacements(self, chosen: Tensor) -> Tensor:
        """How far the clients that a mask [c] chooses have moved, [b, d]."""
        value = self.value[chosen]
        return value if self.origin is None else value - self.origin[self.cluster[chosen]]

    def columns(self, columns: slice) -> NDArray[Any]:
        """Some coordinates of how far all of them have moved, [c, w]."""
        values: NDArray[Any] = self.value[:, columns].numpy()
        if self.origin is None:
            return values
        moved: NDArray[Any] = values - self.origin[:, columns].numpy()[self.cluster.numpy()]
        return moved


class GroupedRows(NamedTuple):
    """A field of all clients, cluster after cluster; the rows lie in memory as they arrived."""

    parts: list[FieldRows]
    places: list[Tensor]  # for each part the places [c] of its rows among all

    def columns(self, columns: slice) -> NDArray[Any]:
        """Some coordinates of how far all have moved, [a, w]."""
        blocks = [part.columns(columns) for part in self.parts]
        shape = sum(map(len, blocks)), blocks[0].shape[1]
        found = np.empty(shape, blocks[0].dtype)
        for place, block in zip(self.places, blocks, strict=True):
            found[place.numpy()] = block
        return found

    def displacements(self, begin: int, end: int) -> Tensor:
        """How far those from one place to another have moved, [end - begin, d]."""
        found = self.parts[0].value.new_empty(end - begin, self.parts[0].value.shape[1])
        for place, part in zip(self.places, self.parts, strict=True):
            chosen = (place >= begin) & (place < end)
            found[place[chosen] - begin] = part.displacements(chosen)
        return found


class UploadRows(NamedTuple):
    """What some clients sent, as far as a robust mean looks at it."""

    ids: Tensor  # [c]
    cluster: Tensor  # [c]
    fields: dict[str, FieldRows]


@dataclass(frozen=True)
class RobustByCluster:
    """The robust mean of every cluster, in place of `sums` per cluster; every client counts once.

    A size that a client tells is not believed. Means over everybody are those of the clusters,
    weighted by their clients. Of models that were never formed only the displacements are.
    """

    sums: ByCluster
    mean: RobustMean

    @property
    def k(self) -> int:
        return self.sums.k

    @property
    def models(self) -> Mapping[str, str]:
        return self.sums.models

    def start(self) -> list[UploadRows]:
        return []

    def add(
        self, total: list[UploadRows], ids: Tensor, upload: Any, sent: Message
    ) -> list[UploadRows]:
        cluster = self.sums.clusters(ids, upload, sent)
        fields = {
            name: field_rows(getattr(upload, name), origin, cluster)
            for name, origin in block_origins(self.sums, sent).items()
        }
        return [*total, UploadRows(ids, cluster, fields)]

    def merge(self, one: list[UploadRows], other: list[UploadRows]) -> list[UploadRows]:
        return one + other

    def finish(self, total: list[UploadRows], sent: Message, floor: float = 0.0) -> ClusterSums:
        empty = finish_sums(self.sums, self.sums.start(), sent, floor)
        nobody = torch.zeros(0, dtype=torch.long)
        by_id = torch.cat([nobody, *(some.ids for some in total)]).argsort()
        cluster = torch.cat([nobody, *(some.cluster for some in total)])[by_id]
        weights = torch.bincount(cluster, minlength=self.k)
        # Cluster after cluster and by id in each, so that the parts in which they came do not show.
        order = by_id[cluster.argsort(stable=True)]
        places = list(order.argsort().split([len(some.ids) for some in total])) if total else []
        filled = torch.nonzero(weights).flatten()
        fields = {
            name: GroupedRows([some.fields[name] for some in total], places)
            for name in (total[0].fields if total else ())
        }
        for name, means in self._means(fields, weights[filled].tolist()).items():
            empty.sums[name][filled] = means * weights[filled, None]
        return ClusterSums(weights.double(), empty.sums, empty.origins, floor, cluster)

    def _means(self, fields: dict[str, GroupedRows], sizes: list[int]) -> dict[str, Tensor]:
        """Of each field the robust mean displacements [g, d] of clusters of so many clients."""
        ends = itertools.accumulate(sizes)
        if self.mean.rule in ("median", "trimmed"):  # coordinate by coordinate, a few at a time
            groups = [
                RowGroup(end - n, end, self.mean.trimmed_values(n))
                for n, end in zip(sizes, ends, strict=True)
            ]
            return {
                name: robust.grouped_trimmed_means(
                    rows.columns, groups, rows.parts[0].value.shape[1]
                )
                for name, rows in fields.items()
            }
        found = [
            self._means_of_rows(fields, end - n, end) for n, end in zip(sizes, ends, strict=True)
        ]
        return {name: torch.stack([each[name] for each in found]) for name in fields}

    def _means_of_rows(
        self, fields: dict[str, GroupedRows], begin: int, end: int
    ) -> dict[str, Tensor]:
        """The mean displacements [d] of one cluster by a rule that looks at whole rows."""
        n = end - begin
        if n > 1:
            self.mean.warn_of_few(n)
        moved = [rows.displacements(begin, end) for rows in fields.values()]
        whole = self.mean.of_rows(moved[0] if len(moved) == 1 else torch.cat(moved, 1)).double()
        return dict(zip(fields, whole.split([each.shape[1] for each in moved]), strict=True))


def field_rows(value: Tensor, origin: Tensor | None, cluster: Tensor) -> FieldRows:
    """A field of clients that are in `cluster` [c] and began at its row of `origin`."""
    if origin is not None and isinstance(value, Lazy) and value.formed is None:
        formula = value.formula
        if isinstance(formula, DisplacementFormula):
            return FieldRows(formula.displacements(origin, cluster), None, cluster)
    return FieldRows(dense(value), origin, cluster)


def robust_fold(mean: RobustMean) -> Callable[[Callable[..., Any], Any], Any]:
    """What takes the place of a fold that adds: a robust one; other folds stay as they are.

    A fold that the server adds up with weights of its own has no robust one.
    """

    def replace(step: Callable[..., Any], fold: Any) -> Any:
        if isinstance(fold, ByCluster):
            averages = bool(fold.models or fold.updates)
            return RobustByCluster(fold, mean) if averages else fold
        if hasattr(fold, "term_shapes"):
            raise SettingError(
                f"`aggregate` must be mean where {step_name(step)} is asked for, whose uploads are "
                f"added up by {type(fold).__name__}, got {mean.rule}"
            )
        return fold

    return replace
