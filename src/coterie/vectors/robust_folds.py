"""Robust means per cluster: the fold that takes the place of one that adds.

What clients sent must be held until all have answered, and the server sees the upload of every
client: such a fold does not add, so that nodes and clusters cannot be left to themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.clients import Stacked, step_name
from coterie.core.errors import CoterieWarning, SettingError
from coterie.tensors.lazy import dense
from coterie.vectors import robust
from coterie.vectors.cluster_sums import ClusterSums, Message, block_origins, finish_sums
from coterie.vectors.folds import ByCluster

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

    def check_clients(self, n: int) -> None:
        """Refuse a rule for which n clients are too few, were they all in one cluster."""
        f = self.wrong_rows(n)
        least = robust.least_rows(self.rule, f)
        if n < least:
            raise SettingError(
                f"`aggregate` {self.rule} needs at least {least} clients in a round to withstand "
                f"{f} of them, got {n}"
            )

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


@dataclass(frozen=True)
class RobustByCluster:
    """The robust mean of every cluster, in place of `sums` per cluster; every client counts once.

    A size that a client tells is not believed. Means over everybody are those of the clusters,
    weighted by their clients.
    """

    sums: ByCluster
    mean: RobustMean

    @property
    def k(self) -> int:
        return self.sums.k

    @property
    def models(self) -> Mapping[str, str]:
        return self.sums.models

    def start(self) -> list[tuple[Tensor, Any]]:
        return []

    def add(
        self, total: list[tuple[Tensor, Any]], ids: Tensor, upload: Any, sent: Message
    ) -> list[tuple[Tensor, Any]]:
        return [*total, (ids, type(upload)(*map(dense, upload)))]

    def merge(
        self, one: list[tuple[Tensor, Any]], other: list[tuple[Tensor, Any]]
    ) -> list[tuple[Tensor, Any]]:
        return one + other

    def finish(
        self, total: list[tuple[Tensor, Any]], sent: Message, floor: float = 0.0
    ) -> ClusterSums:
        empty = finish_sums(self.sums, self.sums.start(), sent, floor)
        if not total:
            return ClusterSums(
                empty.weights, empty.sums, empty.origins, floor, torch.zeros(0, dtype=torch.long)
            )
        ids = torch.cat([ids for ids, _ in total]).sort().values
        upload = Stacked().finish(total, sent)
        cluster = self.sums.clusters(ids, upload, sent)
        weights = torch.bincount(cluster, minlength=self.k).double()
        origins = block_origins(self.sums, sent)
        for j in torch.nonzero(weights).flatten().tolist():
            members = torch.nonzero(cluster == j).flatten()
            own = {
                name: (getattr(upload, name), None if origin is None else origin[j])
                for name, origin in origins.items()
            }
            for name, mean in self._means(own, members).items():
                empty.sums[name][j] = mean * len(members)
        return ClusterSums(weights, empty.sums, empty.origins, floor, cluster)

    def _means(
        self, fields: dict[str, tuple[Tensor, Tensor | None]], members: Tensor
    ) -> dict[str, Tensor]:
        """The robust mean displacement of each field over some clients, in double precision."""
        rule, n = self.mean.rule, len(members)
        if rule in ("median", "trimmed"):  # coordinate by coordinate: nothing need be copied
            f = (n - 1) // 2 if rule == "median" else self.mean.withstood(n)
            found = {}
            for name, (value, origin) in fields.items():
                middle = robust.coordinate_trimmed_mean(value, f, members).double()
                found[name] = middle if origin is None else middle - origin
            return found
        moved = [
            (value[members] if origin is None else value[members] - origin)
            for value, origin in fields.values()
        ]
        if self.mean.withstood(n) < self.mean.wrong_rows(n):
            warnings.warn(
                f"aggregate={rule} withstands {self.mean.withstood(n)} of the {n} clients of a "
                f"cluster, not {self.mean.wrong_rows(n)}: it has too few",
                CoterieWarning,
                stacklevel=2,
            )
        whole = self.mean.of_rows(moved[0] if len(moved) == 1 else torch.cat(moved, 1)).double()
        return dict(zip(fields, whole.split([each.shape[1] for each in moved]), strict=True))


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
