"""Folds: how uploads become what the server needs, without holding them all.

Sums are kept in double precision, so that the order in which clients arrive and the way they are
split into chunks do not show in single-precision models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.tensors.devices import CPU
from coterie.tensors.lazy import add_cluster_sums


class PartialSums(NamedTuple):
    """What `ByCluster` carries along."""

    ids: list[Tensor]
    cluster: list[Tensor]
    weight: Tensor  # [k] sum of weights
    sums: dict[str, Tensor]  # field -> [k, ...] weighted sums, in double precision
    dtypes: dict[str, torch.dtype]  # of the uploads


@dataclass(frozen=True)
class ClusterSums:
    """What `ByCluster` gives: who was where, and means or sums of every field."""

    cluster: Tensor  # [a] cluster of each client that answered, in order of id
    total: PartialSums

    @property
    def weight(self) -> float:
        """The weights of all who answered, added up; 1 if nobody did."""
        return float(self.total.weight.sum()) or 1.0

    def sum(self, field: str) -> Tensor:
        """The weighted sum per cluster, [k, ...]; a plain 0 if nobody answered."""
        if field not in self.total.sums:
            return torch.zeros(())
        return self.total.sums[field].to(self.total.dtypes[field])

    def mean(self, field: str, empty: Tensor) -> Tensor:
        """The weighted mean per cluster [k, ...]; an empty one takes its row of `empty`."""
        if field not in self.total.sums:
            return empty
        return self._mean(self.total.sums[field], self.total.weight, empty)

    def pooled_mean(self, field: str, empty: Tensor) -> Tensor:
        """The weighted mean over everybody [...]; `empty` if nobody answered."""
        if field not in self.total.sums:
            return empty
        sums = self.total.sums[field].sum(0, keepdim=True)
        return self._mean(sums, self.total.weight.sum(0, keepdim=True), empty.unsqueeze(0))[0]

    @staticmethod
    def _mean(sums: Tensor, weight: Tensor, empty: Tensor) -> Tensor:
        weight = weight.view(-1, *(1 for _ in sums.shape[1:]))
        return torch.where(weight > 0, (sums / weight).to(empty.dtype), empty)


@dataclass(frozen=True)
class ByCluster:
    """Sums per cluster of every uploaded field but `cluster` and `size`.

    Every client counts the same, or with `by_size` as much as it has samples. A client says itself
    in which cluster it is, or the server does by `assign(ids, model) -> [m]`.

    >>> class Upload(NamedTuple):
    ...     cluster: Tensor
    ...     model: Tensor
    ...     size: Tensor
    >>> fold = ByCluster(3)
    >>> up = Upload(torch.tensor([0, 0, 2]), torch.tensor([[1.0], [3.0], [7.0]]), torch.ones(3))
    >>> grouped = fold.finish(fold.add(fold.start(), torch.arange(3), up))
    >>> grouped.mean("model", empty=torch.full((3, 1), -1.0)).flatten().tolist()
    [2.0, -1.0, 7.0]
    """

    k: int
    by_size: bool = False
    assign: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def on_any_device(self) -> bool:
        """Whether uploads are added on the device they are on; the server assigns on the CPU."""
        return self.assign is None

    def start(self) -> PartialSums:
        return PartialSums([], [], torch.zeros(self.k, dtype=torch.float64), {}, {})

    def add(self, total: PartialSums, ids: Tensor, upload: Any) -> PartialSums:
        cluster = self.assign(ids, upload.model) if self.assign else upload.cluster
        weight = upload.size if self.by_size else torch.ones_like(upload.size)
        # [k, a]: row j holds the weights of the clients in cluster j, so a sum is one product.
        member = weight.new_zeros(self.k, len(ids), dtype=torch.float64)
        member[cluster, torch.arange(len(ids), device=member.device)] = weight.double()
        values = {n: v for n, v in upload._asdict().items() if n not in ("cluster", "size")}
        for name, value in values.items():
            if name not in total.sums:
                total.sums[name] = member.new_zeros(self.k, *value.shape[1:])
                total.dtypes[name] = value.dtype
            add_cluster_sums(total.sums[name], member, value)
        total.ids.append(ids)
        total.cluster.append(cluster)
        return total._replace(weight=total.weight.to(member.device) + member.sum(1))

    def merge(self, one: PartialSums, other: PartialSums) -> PartialSums:
        return PartialSums(
            one.ids + other.ids,
            one.cluster + other.cluster,
            one.weight + other.weight,
            {n: one.sums[n] + value if n in one.sums else value for n, value in other.sums.items()}
            or one.sums,
            other.dtypes or one.dtypes,
        )

    def finish(self, total: PartialSums) -> ClusterSums:
        nobody = torch.zeros(0, dtype=torch.long)
        order = torch.cat([nobody, *total.ids]).argsort()
        cluster = torch.cat([nobody, *(chunk.to(CPU) for chunk in total.cluster)])[order]
        if not total.weight.is_cpu:
            sums = {name: value.to(CPU) for name, value in total.sums.items()}
            total = total._replace(weight=total.weight.to(CPU), sums=sums)
        return ClusterSums(cluster, total)
