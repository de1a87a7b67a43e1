"""What looks on while an algorithm works: for inputs that change, and for bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.clients import Call, Clients, Each, step_name


class InputGuard:
    """Clients that complain about a step that changes what it was sent."""

    def __init__(self, inner: Clients) -> None:
        self.inner, self.ids = inner, inner.ids
        self.population, self.round, self.task = inner.population, inner.round, inner.task
        self.withheld = inner.withheld

    def only(self, ids: Tensor) -> InputGuard:
        return InputGuard(self.inner.only(ids))

    def generator(self, purpose: str) -> torch.Generator:
        return self.inner.generator(purpose)

    def run(self, step: Callable[..., Any], *, fold: Any = None, **message: Any) -> Any:
        sent = {name: sent_tensor(value) for name, value in message.items()}
        copies = {name: value.clone() for name, value in sent.items()}
        answer = self.inner.run(step, fold=fold, **message)
        for name, value in sent.items():
            assert torch.equal(copies[name], value), f"{step.__name__} changed {name}"
        return answer


class ByteCounter:
    """A filter that lets everything through and adds traffic up, from the tensors themselves."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.steps: dict[str, Callable[..., Any]] = {}
        self.fields: dict[str, tuple[str, ...]] = {}

    def apply(self, call: Call, ids: Tensor, upload: Any) -> tuple[Tensor, Any]:
        key = step_name(call.step)
        self.steps[key], self.fields[key] = call.step, upload._fields
        for name, value in call.message.items():
            for i in ids:
                sent = value.rows_for(i.view(1)) if isinstance(value, Each) else sent_tensor(value)
                self.counts[key, "down", name] += sent.numel() * sent.element_size()
        for name in upload._fields:
            row = getattr(upload, name)[0]
            self.counts[key, "up", name] += len(ids) * row.numel() * row.element_size()
        return ids, upload


def sent_tensor(value: Any) -> Tensor:
    """The numbers of a download: a plain one is eight bytes, None is none."""
    if isinstance(value, Each | Tensor):
        return value.rows if isinstance(value, Each) else value
    return torch.tensor([] if value is None else [value], dtype=torch.float64)
