"""Sums per cluster of what clients are displaced by: what folds that only add carry and give.

What a client adds to the sums are its terms. For each of k clusters that is a weight, and for each
field the weighted displacement of its value from what was sent: from the download that the field is
a change of, of which cluster j has row j, or from zero where the field is a change already (an
`Update`). At the end what was sent is added to the mean displacement again.

- Names and shapes of the terms follow from the call alone, before anybody has answered.
- Sums of terms may be made anywhere, in any order: of a chunk, a Ray actor, a node.
- A cluster to which nobody added anything stays what was sent.
- A weight that is a little wrong, as one with noise is, spoils the displacement and not the model.

Sums are kept in double precision, so that the order in which clients arrive and the way they are
split into chunks do not show in single-precision models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.core.clients import Each, TermShapes
from coterie.core.errors import CoterieError
from coterie.core.fields import Role, field_of_role, roles
from coterie.tensors.devices import CPU
from coterie.tensors.lazy import dense

WEIGHT = "weight"  # the term that holds the weights
Message = Mapping[str, Any]  # what clients are sent


class PartialSums(NamedTuple):
    """What a fold carries along: the sum of the terms so far."""

    weight: Tensor  # [k] sum of weights
    sums: dict[str, Tensor]  # field -> [k, d] weighted sums of displacements
    ids: list[Tensor]  # of clients whose cluster the server may know
    cluster: list[Tensor]

    @property
    def terms(self) -> dict[str, Tensor]:
        """All sums by the names of their terms."""
        return {WEIGHT: self.weight, **self.sums}


@dataclass(frozen=True)
class ClusterSums:
    """What the folds here give: means or sums of every field, and who was where."""

    weights: Tensor  # [k]
    sums: dict[str, Tensor]  # field -> [k, d]
    origins: dict[str, Tensor]  # field -> [d] or [k, d]: what a sum is a displacement from
    floor: float = 0.0  # a weight of at most so much is nobody's
    cluster: Tensor | None = None  # [a] of who answered, by id; None: the server does not know

    @property
    def weight(self) -> float:
        """The weights of all who answered, added up; 1 if nobody did."""
        total = float(self.weights.sum())
        return total if total > self.floor else 1.0

    def sum(self, field: str) -> Tensor:
        """The weighted sum of displacements per cluster, [k, d]."""
        return self.sums[field].to(self.origins[field].dtype)

    def mean(self, field: str) -> Tensor:
        """The weighted mean per cluster [k, d]; an empty one has what was sent."""
        return self._mean(self.sums[field], self.weights, self.origins[field])

    def pooled_mean(self, field: str) -> Tensor:
        """The weighted mean over everybody [d], of what was sent as one to all."""
        origin = self.origins[field]
        if origin.dim() != 1:
            raise CoterieError(
                f"`pooled_mean` of {field} must be of a download that is one for all [d], got "
                f"{list(origin.shape)}"
            )
        sums, weight = self.sums[field].sum(0, keepdim=True), self.weights.sum(0, keepdim=True)
        return self._mean(sums, weight, origin)[0]

    def _mean(self, sums: Tensor, weight: Tensor, origin: Tensor) -> Tensor:
        weight = weight[:, None]
        mean = (origin + sums / weight).to(origin.dtype)
        return torch.where(weight > self.floor, mean, origin)


class SummedFields(Protocol):
    """Which fields a fold sums, in how many clusters."""

    @property
    def k(self) -> int: ...
    @property
    def models(self) -> Mapping[str, str]:
        """Fields with the role Model, and the download that each is a displacement of."""

    @property
    def updates(self) -> Mapping[str, str | int]:
        """Fields that are summed as they are: with the role Update, Loss or Statistic.

        Each has as many numbers as a download of that name, or as many as is said.
        """


def sent_rows(sent: Message, name: str) -> Tensor:
    """A download as it is known to everybody: one for all [d], or a row for each cluster [k, d]."""
    if name not in sent:
        raise CoterieError(
            f"a fold must name downloads of the call ({', '.join(sent)}), got {name}"
        )
    value = sent[name]
    if not isinstance(value, Each):
        return dense(value)  # type: ignore[no-any-return]
    if value.index is None:
        raise CoterieError(
            f"{name} must be one for all or have a row for each cluster, so that a fold can add up "
            "what clients made of it, got a row for each client"
        )
    return dense(value.rows)  # type: ignore[no-any-return]


def block_origins(fold: SummedFields, sent: Message) -> dict[str, Tensor | None]:
    """What each field is displaced from in each cluster, [k, d]; None: from zero."""
    origins: dict[str, Tensor | None] = {}
    for name, download in fold.models.items():
        rows = sent_rows(sent, download)
        if rows.dim() > 1 and len(rows) != fold.k:
            raise CoterieError(
                f"{download} must have a row for each of the {fold.k} clusters of a fold, got "
                f"{len(rows)}"
            )
        origins[name] = rows.expand(fold.k, -1)
    return origins | dict.fromkeys(fold.updates)


def check_summed_fields(
    fold: SummedFields, upload: Any, sent: Message, rows: tuple[int, ...]
) -> None:
    """Refuse an upload unless what a fold sums is declared to be that and fits what was sent.

    `rows` is what comes before the numbers of a field: [m], or [m, k] where clients send k rows.
    """
    declared, as_is = roles(upload.__class__), (Role.UPDATE, Role.LOSS, Role.STATISTIC)
    shapes = sum_shapes(fold, sent)
    for names, allowed in ((fold.models, (Role.MODEL,)), (fold.updates, as_is)):
        for name in names:
            if declared.get(name) not in allowed:
                wanted = " or ".join(role.value.capitalize() for role in allowed)
                missing = "no such field" if name not in declared else declared[name].value
                raise CoterieError(
                    f"{field_name(upload, name)} must be of the type {wanted}, for a fold sums it "
                    f"as that, got {missing}"
                )
            width = shapes[name][0][-1]
            if tuple(getattr(upload, name).shape) != (*rows, width):
                raise CoterieError(
                    f"{field_name(upload, name)} must be {[*rows, width]}, for a fold sums it, got "
                    f"{list(getattr(upload, name).shape)}"
                )


def field_name(upload: Any, name: str) -> str:
    """What to call a field of an upload."""
    return f"{name} of {type(upload).__name__}"


def required_field(upload: Any, role: Role) -> Tensor:
    """The field of an upload that has a role, which a fold cannot do without."""
    name = field_of_role(upload.__class__, role)
    if name is None:
        raise CoterieError(
            f"{type(upload).__name__} must have a field of the type {role.value.capitalize()}, by "
            "which a fold goes"
        )
    value: Tensor = getattr(upload, name)
    return value


def sum_shapes(fold: SummedFields, sent: Message) -> TermShapes:
    """The shapes [k] of the weights and [k, d] of every field, all in double precision."""
    shapes: TermShapes = {WEIGHT: ((fold.k,), torch.float64)}
    for name, like in {**fold.models, **fold.updates}.items():
        width = like if isinstance(like, int) else sent_rows(sent, like).shape[-1]
        shapes[name] = (fold.k, width), torch.float64
    return shapes


def joint_bound(fold: SummedFields, limits: Mapping[str, float], largest_weight: float) -> float:
    """The norm of a weight and of all fields times that weight."""
    squares = sum(limits[name] ** 2 for name in (*fold.models, *fold.updates))
    return largest_weight * sqrt(1 + squares)


def empty_sums(k: int) -> PartialSums:
    """Sums of nobody's terms."""
    return PartialSums(torch.zeros(k, dtype=torch.float64), {}, [], [])


def merge_sums(one: PartialSums, other: PartialSums) -> PartialSums:
    """The sums of two lots of clients."""
    shared = {n: v + other.sums[n] if n in other.sums else v for n, v in one.sums.items()}
    weight = one.weight + other.weight
    sums = {**other.sums, **shared}
    return PartialSums(weight, sums, one.ids + other.ids, one.cluster + other.cluster)


def finish_sums(fold: SummedFields, total: PartialSums, sent: Message, floor: float) -> ClusterSums:
    """The result of sums, on the CPU; where nobody answered they are zero."""
    sums, origins = {}, {}
    shapes = sum_shapes(fold, sent)
    for name, like in {**fold.models, **fold.updates}.items():
        shape, dtype = shapes[name]
        found = total.sums.get(name)
        sums[name] = torch.zeros(shape, dtype=dtype) if found is None else found.to(CPU)
        if isinstance(like, int):
            origins[name] = torch.zeros(like, dtype=dtype)
            continue
        rows = sent_rows(sent, like)
        origins[name] = rows if name in fold.models else torch.zeros_like(rows)
    return ClusterSums(total.weight.to(CPU), sums, origins, floor)
