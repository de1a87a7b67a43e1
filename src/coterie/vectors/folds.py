"""Folds that only add: how uploads become sums per cluster, without holding them all.

Each is a frozen dataclass of plain data, so that it can be sent to where uploads arise. What they
add up is told in `cluster_sums.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from coterie.core.clients import TermShapes
from coterie.core.errors import CoterieError
from coterie.core.fields import Role
from coterie.core.step_checks import check_index
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import Lazy, add_cluster_sums, dense
from coterie.vectors.cluster_sums import (
    WEIGHT,
    ClusterSums,
    Message,
    PartialSums,
    block_origins,
    check_summed_fields,
    empty_sums,
    field_name,
    finish_sums,
    joint_bound,
    merge_sums,
    required_field,
    sum_shapes,
)
from coterie.vectors.kmeans import nearest_centre


class Assignment(Protocol):
    """How the server, and not the client, says in which cluster a client is: plain data."""

    def clusters(self, ids: Tensor, upload: Any, sent: Message) -> Tensor:
        """The cluster of each client, [m]."""


@dataclass(frozen=True)
class RowSent:
    """A client is in the cluster whose row of a download it was sent, an `Each` with an index."""

    download: str

    def clusters(self, ids: Tensor, upload: Any, sent: Message) -> Tensor:
        each: Any = sent.get(self.download)
        if not hasattr(each, "index_for"):
            raise CoterieError(
                f"`RowSent` must name a download that is an `Each`, got {self.download}"
            )
        index: Tensor = each.index_for(ids)
        return index


@dataclass(frozen=True)
class NearestCentre:
    """A client is in the cluster whose centre is nearest to a field that it sent."""

    field: str
    centres: Tensor  # [k, p]
    part: Tensor | None = None  # [d] which p coordinates of the field are compared; None: all

    def clusters(self, ids: Tensor, upload: Any, sent: Message) -> Tensor:
        value = getattr(upload, self.field)
        if self.part is not None and not bool(self.part.all()):
            value = value[:, self.part]
        return nearest_centre(value, self.centres)


@dataclass(frozen=True)
class ByCluster:
    """Sums per cluster: every client adds to those of the one cluster that it is in.

    `models` names fields with the role Model and the download that each is a displacement of, which
    is one for all [d], a row for each cluster [k, d], or the `Each` of these by an index. `updates`
    names fields that are summed as they are (Update, Loss, Statistic), and a download with as many
    numbers or how many these are. Other fields are not summed.

    Every client counts the same, or with `by_size` as much as its field with the role Size says. A
    client says itself in which cluster it is, by its field with the role Cluster, or the server
    does by `assign`. With `withheld`, the server is not told who is in which cluster.

    >>> from coterie.algorithms.fedavg import Upload
    >>> fold, sent = ByCluster(3, {"model": "models"}), {"models": torch.tensor([[0.0], [5], [9]])}
    >>> up = Upload(torch.tensor([0, 0, 2]), torch.tensor([[1.0], [3.0], [7.0]]), torch.ones(3))
    >>> total = fold.add(fold.start(), torch.arange(3), up, sent)
    >>> fold.finish(total, sent).mean("model").flatten().tolist()
    [2.0, 5.0, 7.0]
    """

    k: int
    models: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str | int] = field(default_factory=dict)
    by_size: bool = False
    assign: Assignment | None = None
    withheld: bool = False

    per_client: ClassVar[tuple[Role, ...]] = (Role.CLUSTER,)  # what it may tell of single clients

    @property
    def on_any_device(self) -> bool:
        """Whether uploads are added on the device they are on; the server assigns on the CPU."""
        return self.assign is None

    def start(self) -> PartialSums:
        return empty_sums(self.k)

    def add(self, total: PartialSums, ids: Tensor, upload: Any, sent: Message) -> PartialSums:
        cluster, member = self._members(ids, upload, sent)
        for name, origin in block_origins(self, sent).items():
            value = getattr(upload, name)
            if name not in total.sums:
                total.sums[name] = member.new_zeros(self.k, value.shape[1])
            add_cluster_sums(total.sums[name], member, value, origin)
        if not self.withheld:
            total.ids.append(ids)
            total.cluster.append(cluster)
        return total._replace(weight=total.weight.to(member.device) + member.sum(1))

    def merge(self, one: PartialSums, other: PartialSums) -> PartialSums:
        return merge_sums(one, other)

    def finish(self, total: PartialSums, sent: Message, floor: float = 0.0) -> ClusterSums:
        result = finish_sums(self, total, sent, floor)
        if self.withheld:
            return result
        nobody = torch.zeros(0, dtype=torch.long)
        order = torch.cat([nobody, *total.ids]).argsort()
        cluster = torch.cat([nobody, *(chunk.to(CPU) for chunk in total.cluster)])[order]
        return ClusterSums(result.weights, result.sums, result.origins, floor, cluster)

    def without_clients(self) -> Self | None:
        """The same with the clusters of single clients withheld; the server cannot assign them."""
        return replace(self, withheld=True) if self.assign is None else None

    def term_shapes(self, sent: Message) -> TermShapes:
        """The shape and type of every term."""
        return sum_shapes(self, sent)

    def terms(self, ids: Tensor, upload: Any, sent: Message) -> dict[str, Tensor]:
        """What each client adds to the sums: for every term [m, ...]."""
        _, member = self._members(ids, upload, sent)
        weight = member.T  # [m, k]
        found = {WEIGHT: weight}
        for name, origin in block_origins(self, sent).items():
            value = dense(getattr(upload, name)).double()[:, None]  # [m, 1, d]
            found[name] = weight[:, :, None] * (value if origin is None else value - origin)
        return found

    def bound(self, limits: Mapping[str, float], largest_weight: float = 1.0) -> float:
        """The largest norm of one client's terms, taken together.

        `limits` are the largest norms of what a client's fields are displaced by. With `by_size`,
        `largest_weight` is the largest size that counts.
        """
        assert self.by_size or largest_weight == 1, "without `by_size` every client weighs 1"
        return joint_bound(self, limits, largest_weight)

    def clusters(self, ids: Tensor, upload: Any, sent: Message) -> Tensor:
        """The cluster of each client, [m]: as it says itself, or as the server finds it."""
        check_summed_fields(self, upload, sent, (len(ids),))
        if self.assign is not None:
            return self.assign.clusters(ids, upload, sent)
        found = required_field(upload, Role.CLUSTER)
        check_index(f"the clusters of {type(upload).__name__}", found, self.k)
        return found

    def _members(self, ids: Tensor, upload: Any, sent: Message) -> tuple[Tensor, Tensor]:
        """The cluster of each client [m], and [k, m] whose row j has the weights of those in j.

        So a sum is one product.
        """
        cluster = self.clusters(ids, upload, sent)
        member = torch.zeros(self.k, len(ids), dtype=torch.float64, device=cluster.device)
        weight: Tensor | float = 1.0
        if self.by_size:
            weight = required_field(upload, Role.SIZE).double()
        member[cluster, torch.arange(len(ids), device=member.device)] = weight
        return cluster, member


@dataclass(frozen=True)
class WeightedRows:
    """Weighted means of k models of which every client sends all, with a weight for each.

    A field with the role Model is [m, k, d], and the field named `weight` is [m, k]. `models` and
    `updates` are those of `ByCluster`.
    """

    k: int
    weight: str
    models: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str | int] = field(default_factory=dict)

    per_client: ClassVar[tuple[Role, ...]] = ()
    on_any_device: ClassVar[bool] = True

    def start(self) -> PartialSums:
        return empty_sums(self.k)

    def add(self, total: PartialSums, ids: Tensor, upload: Any, sent: Message) -> PartialSums:
        check_summed_fields(self, upload, sent, (len(ids), self.k))
        weight = self._weights(ids, upload)
        for name, origin in block_origins(self, sent).items():
            value = getattr(upload, name)
            if name not in total.sums:
                total.sums[name] = weight.new_zeros(self.k, value.shape[2])
            if isinstance(value, Lazy) and value.formed is None:
                value.formula.add_to(total.sums[name], weight.T, origin)
                continue
            for j, sums in enumerate(total.sums[name].split(1)):
                own = None if origin is None else origin[j : j + 1]
                add_cluster_sums(sums, weight[:, j][None], value[:, j], own)
        return total._replace(weight=total.weight.to(weight.device) + weight.sum(0))

    def merge(self, one: PartialSums, other: PartialSums) -> PartialSums:
        return merge_sums(one, other)

    def finish(self, total: PartialSums, sent: Message, floor: float = 0.0) -> ClusterSums:
        return finish_sums(self, total, sent, floor)

    def without_clients(self) -> Self:
        """The same: it tells nothing of single clients."""
        return self

    def term_shapes(self, sent: Message) -> TermShapes:
        """The shape and type of every term."""
        return sum_shapes(self, sent)

    def terms(self, ids: Tensor, upload: Any, sent: Message) -> dict[str, Tensor]:
        """What each client adds to the sums: for every term [m, ...]."""
        weight = self._weights(ids, upload)
        found = {WEIGHT: weight}
        for name, origin in block_origins(self, sent).items():
            value = dense(getattr(upload, name)).double()
            found[name] = weight[:, :, None] * (value if origin is None else value - origin)
        return found

    def bound(self, limits: Mapping[str, float], largest_weight: float = 1.0) -> float:
        """The largest norm of one client's terms, taken together.

        `limits` are the largest norms of what each of the k rows of a field is displaced by,
        `largest_weight` the largest norm of a client's k weights, 1 if these add up to 1.
        """
        return joint_bound(self, limits, largest_weight)

    def _weights(self, ids: Tensor, upload: Any) -> Tensor:
        """The weights of the k rows of each client, [m, k]."""
        weight = getattr(upload, self.weight, None)
        if weight is None or tuple(weight.shape) != (len(ids), self.k):
            got = "no such field" if weight is None else list(weight.shape)
            raise CoterieError(
                f"{field_name(upload, self.weight)} must be {[len(ids), self.k]}, a weight for "
                f"each of the rows that a client sends, got {got}"
            )
        found: Tensor = weight.double()
        return found
