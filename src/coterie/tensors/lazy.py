"""Models that are formed only when somebody looks at them.

A thousand clients that start from one of four models, or end in a sum of a start and a combination
of their samples, need not each have a vector of their own: what is folded per cluster can be had
from the formula. A `Lazy` is a tensor in every other way; any operation on it forms it.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.tensors.devices import working_bytes

BLOCK_BYTES = 2**19  # doubles that are added up at a time


class Formula(Protocol):
    """How m models come about, or what else clients upload."""

    dtype: torch.dtype
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]: ...

    def dense(self) -> Tensor:
        """The models [m, d]."""

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        """Add the weighted sums per cluster, `member` [k, m] times the models, to `sums` [k, d].

        Both are in double precision. Row j of `origin` [k, d] is subtracted from every model that
        is added to cluster j. Where there are k of them for each client, [m, k, d], a client adds
        its own row j to the sums of cluster j.
        """


@runtime_checkable
class DisplacementFormula(Protocol):
    """A formula that says how far models are from others without forming them."""

    def displacements(self, origin: Tensor, index: Tensor) -> Tensor:
        """How far model i is from row `index[i]` of origin [k, d]: [m, d]."""


class Lazy(Tensor):
    """Models [m, d] given by a formula, or k rows of each client [m, k, d].

    >>> models = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (select_rows(models, torch.tensor([1, 1, 0])) + 1).tolist()
    [[4.0, 5.0], [4.0, 5.0], [2.0, 3.0]]
    """

    formula: Formula
    formed: Tensor | None

    @staticmethod
    def __new__(cls, formula: Formula) -> Lazy:
        lazy: Lazy = torch.Tensor._make_wrapper_subclass(
            cls, formula.shape, dtype=formula.dtype, device=formula.device
        )
        lazy.formula, lazy.formed = formula, None
        return lazy

    def dense(self) -> Tensor:
        """An ordinary tensor; the same one whenever it is asked for, so that it may be changed."""
        if self.formed is None:
            self.formed = self.formula.dense()
        return self.formed

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return function(*tree_map(dense, arguments), **tree_map(dense, options or {}))

    def numpy(self, *, force: bool = False) -> Any:
        return self.dense().numpy(force=force)

    def tolist(self) -> Any:
        return self.dense().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.dense())


def dense(value: Any) -> Any:
    """An ordinary tensor in place of a lazy one; anything else as it is."""
    return value.dense() if isinstance(value, Lazy) else value


def add_cluster_sums(
    sums: Tensor, member: Tensor, value: Tensor, origin: Tensor | None = None
) -> None:
    """Add weighted sums per cluster, `member` [k, m] times values [m, ...], to `sums` [k, ...].

    In double precision, a block of columns at a time: its doubles stay in the cache. Models that
    were never formed are added up without forming them. Row j of `origin` [k, ...] is subtracted
    from every value that is added to cluster j.
    """
    if isinstance(value, Lazy) and value.formed is None:
        value.formula.add_to(sums, member, origin)
        return
    flat, flat_sums = value.flatten(1), sums.flatten(1)
    width = max(1, working_bytes(flat.device, BLOCK_BYTES) // (8 * len(flat)))
    for some, columns in zip(flat_sums.split(width, 1), flat.split(width, 1), strict=True):
        some.addmm_(member, columns.double())
    if origin is not None:
        subtract_origin(sums, member, origin)


def subtract_origin(sums: Tensor, member: Tensor, origin: Tensor) -> None:
    """Subtract row j of `origin` [k, ...] from `sums` [k, ...] times the weights of cluster j."""
    weight = member.sum(1)
    if not sums.is_cpu:  # where to look at single numbers costs more than to multiply by zero
        sums -= weight.view(-1, *(1 for _ in sums.shape[1:])) * origin
        return
    for j in torch.nonzero(weight).flatten().tolist():
        sums[j].sub_(origin[j], alpha=float(weight[j]))


class SelectedRows:
    """Row `index[i]` of shared models [k, d] for each client i.

    `activations` may carry what a kernel found out about them on the way: the first layer's outputs
    [m, h, n] of every client under its model.
    """

    def __init__(self, models: Tensor, index: Tensor, activations: Tensor | None = None) -> None:
        self.models, self.activations = models, activations
        self.index = index.to(models.device)
        self.shape = len(index), models.shape[1]
        self.dtype, self.device = models.dtype, models.device

    def to(self, device: torch.device) -> SelectedRows:
        """The same on another device."""
        return SelectedRows(self.models.to(device), self.index)

    def dense(self) -> Tensor:
        return self.models[self.index]

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        weights = member.new_zeros(len(member), len(self.models)).index_add_(1, self.index, member)
        if origin is not None and same_rows(origin, self.models):
            # What is added would be subtracted again, for most clients; only the rest is left.
            own = weights[:, 0] if len(self.models) == 1 else weights.diagonal()
            own -= member.sum(1)
        elif origin is not None:
            subtract_origin(sums, member, origin)
        if not sums.is_cpu:  # where to look at single numbers costs more than to multiply by zero
            add_cluster_sums(sums, weights, self.models)
            return
        for cluster, model in torch.nonzero(weights).tolist():
            sums[cluster].add_(self.models[model], alpha=float(weights[cluster, model]))


def same_rows(origin: Tensor, models: Tensor) -> bool:
    """Whether row j of `origin` [k, d] is row j of `models`, or the only one, in memory."""
    same = origin.data_ptr() == models.data_ptr() and origin.shape[1] == models.shape[1]
    if not same or origin.stride(1) != models.stride(1) or origin.dtype != models.dtype:
        return False
    one = len(models) == 1 and (len(origin) == 1 or origin.stride(0) == 0)
    return one or (len(origin) == len(models) and origin.stride(0) == models.stride(0))


def select_rows(models: Tensor, index: Tensor) -> Tensor:
    """Row `index[i]` of shared models [k, d] for each client i, without a copy: [m, d]."""
    return Lazy(SelectedRows(models, index))


def as_selected_rows(models: Tensor) -> SelectedRows | None:
    """How models [m, d] are picked out of shared ones, if they are."""
    if isinstance(models, Lazy):
        picked = models.formed is None and isinstance(models.formula, SelectedRows)
        return models.formula if picked else None  # type: ignore[return-value]
    if len(models) > 0 and models.stride(0) == 0:  # one model, expanded
        nought = torch.zeros(len(models), dtype=torch.long, device=models.device)
        return SelectedRows(models[:1], nought)
    return None


def slice_rows(models: Tensor, here: slice) -> Tensor:
    """The models of some clients; of those that are picked out of others no more are formed."""
    pick = as_selected_rows(models)
    return dense(models)[here] if pick is None else pick.models[pick.index[here]]


def to_device(value: Any, device: torch.device) -> Any:
    """A tensor on a device; anything else as it is.

    Models that are picked out of shared ones stay that: only the shared ones are copied.
    """
    if not isinstance(value, Tensor) or value.device == device:
        return value
    pick = as_selected_rows(value) if value.dim() == 2 else None
    return dense(value).to(device) if pick is None else Lazy(pick.to(device))
