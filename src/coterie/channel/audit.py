"""An audit of folds: clients whose replies are folded in several ways, which must agree."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from coterie.core.clients import Call, Fold, LinearFold, Stacked, step_name
from coterie.core.cohort import Memory
from coterie.core.population import Population, Purpose, RoundClients
from coterie.core.task import Task

FOLD_BYTES = 10_000  # that a fold may take without its tensors


class AuditedPopulation:
    """A population that checks every fold on real uploads, and raises an AssertionError."""

    def __init__(self, inner: Population) -> None:
        self.inner = inner
        self.calls = 0

    @property
    def population(self) -> int:
        return self.inner.population

    @property
    def task(self) -> Task:
        return self.inner.task

    @property
    def ids(self) -> Tensor:
        return self.inner.ids

    @property
    def sizes(self) -> Tensor:
        return self.inner.sizes

    @property
    def memory(self) -> Memory:
        return self.inner.memory

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> RoundClients:
        """The clients `ids` (all of them if not given) in a round, behind the seam."""
        clients = self.inner.at(purpose, *address, round=round, ids=ids)
        clients.runner = self
        return clients

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: who answered, and the fold of their replies, which is checked."""
        self.calls += 1
        ids, replies = self.inner.collect(call, Stacked())
        upload = Stacked().finish(replies, call.message)
        label = f"the fold of {step_name(call.step)}"
        size = plain_bytes(fold)
        assert size < FOLD_BYTES, f"{label} takes {size:,} bytes without its tensors"
        if upload is None:
            return ids, fold.start()
        if isinstance(fold, LinearFold):
            check_terms(fold, label, call, ids, upload)
        return ids, fold.add(fold.start(), ids, upload, call.message)

    def notes(self) -> dict[str, Any]:
        return self.inner.notes()

    def on_checkpoint(self, rounds: int) -> None:
        self.inner.on_checkpoint(rounds)

    def on_best(self, rounds: int) -> None:
        self.inner.on_best(rounds)

    def go_to(self, rounds: int) -> None:
        self.inner.go_to(rounds)


def check_terms(fold: LinearFold[Any], label: str, call: Call, ids: Tensor, upload: Any) -> None:
    """Check what a linear fold says of its terms against what it makes of uploads."""
    sent = call.message
    whole = fold.add(fold.start(), ids, upload, sent)
    terms, shapes = fold.terms(ids, upload, sent), fold.term_shapes(sent)
    assert set(terms) == set(shapes) == set(whole.terms), f"{label} has other terms than it says"
    for name, (shape, dtype) in shapes.items():
        term, found = terms[name], whole.terms[name]
        assert term.shape == (len(ids), *shape), f"{name} in {label} has another shape"
        assert found.shape == shape, f"the sum of {name} in {label} has another shape"
        assert found.dtype == term.dtype == dtype, f"{name} in {label} is of another type"
        assert_alike(found, term.sum(0), f"{name} in {label} is not the sum of its terms")
    halves = [fold.start(), fold.start()]
    for place in reversed(range(len(ids))):
        one = type(upload)(*(value[place : place + 1] for value in upload))
        halves[place % 2] = fold.add(halves[place % 2], ids[place : place + 1], one, sent)
    merged = fold.merge(*halves)
    for name in shapes:
        assert_alike(whole.terms[name], merged.terms[name], f"parts of {label} do not add up")
    check_bound(fold, label, terms)


def check_bound(fold: LinearFold[Any], label: str, terms: dict[str, Tensor]) -> None:
    """Check that no client adds more than a fold bounds, if all fields are as small as they are."""
    norms = {name: term.flatten(1).norm(dim=1) for name, term in terms.items()}
    weight = norms.pop("weight")
    limits = {name: float((norm / weight).nan_to_num().max()) for name, norm in norms.items()}
    joint = torch.stack([weight, *norms.values()]).norm(dim=0)
    bound = fold.bound(limits, float(weight.max()))
    assert float(joint.max()) <= bound * (1 + 1e-9), f"{label} exceeds its bound"


def assert_alike(one: Tensor, other: Tensor, otherwise: str) -> None:
    scale = float(one.abs().max()) if one.numel() else 0.0
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-9 * (1 + scale)), otherwise


def plain_bytes(fold: Fold[Any]) -> int:
    """The bytes of a fold when it is sent, without its tensors."""

    class WithoutTensors(pickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:
            return "tensor" if isinstance(value, Tensor) else None

    file = io.BytesIO()
    WithoutTensors(file).dump(fold)
    return file.tell()
