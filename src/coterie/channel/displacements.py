"""Displacements: how far clients have moved from what they were sent.

A field with the role Model is a displacement of a download, which the fold of a call names, or the
step itself (`Call.origins`). An Update is one already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.clients import Call, Each, step_name
from coterie.core.errors import CoterieError
from coterie.core.fields import Role, field_of_role, roles
from coterie.tensors.lazy import dense

COLUMNS = 1024  # coordinates that are looked at together


class Displaced(NamedTuple):
    """A field of clients' uploads and what it is displaced from, if that is not zero."""

    name: str
    value: Tensor  # [a, d], or [a, j d] where clients send j rows each
    models: Tensor | None  # [k, d] what was sent; None: zero
    began: Tensor | None  # [a] which of these each client began at

    def origin(self, columns: slice = slice(None)) -> Tensor | float:
        """What each client began at, [a, d] or [1, d], or some columns of it; 0 of an update."""
        if self.models is None:
            return 0.0
        models = self.models[:, columns]
        return models if self.began is None else models[self.began]


def displaced_fields(call: Call, ids: Tensor, upload: Any) -> list[Displaced]:
    """The models and updates that clients `ids` sent, each with what it is displaced from."""
    found = []
    for name, role in roles(upload.__class__).items():
        if role not in (Role.MODEL, Role.UPDATE):
            continue
        value = dense(getattr(upload, name))
        if value.numel() == 0:
            continue
        if role is Role.UPDATE:
            found.append(Displaced(name, value.flatten(1), None, None))
            continue
        if name not in call.origins:
            raise CoterieError(
                f"what {name} of {step_name(call.step)} is a displacement of must be declared for "
                'an attack or a screen, as in @on_client(origins={"model": "model"})'
            )
        found.append(displaced_model(call, name, ids, upload, value))
    return found


def displaced_model(call: Call, name: str, ids: Tensor, upload: Any, value: Tensor) -> Displaced:
    """A field with the role Model, and what it is displaced from."""
    source = call.origins[name]
    sent = call.message[source] if isinstance(source, str) else source
    if isinstance(sent, Each):
        if sent.index is None:
            rows = dense(sent.rows_for(ids)).flatten(1).to(value.device)
            return Displaced(name, value.flatten(1), rows, torch.arange(len(ids)))
        models = dense(sent.rows).to(value.device)
        return Displaced(name, value, models, sent.index_for(ids).to(value.device))
    models = dense(sent).to(value.device)
    if value.dim() == 3:  # every client sends all of them
        return Displaced(name, value.flatten(1), models.reshape(1, -1), None)
    if models.dim() == 1:
        return Displaced(name, value, models[None], None)
    cluster = field_of_role(type(upload), Role.CLUSTER)
    if cluster is None:
        raise CoterieError(
            f"{step_name(call.step)} must say in which cluster a client is, for {name} is "
            "displaced from the model of that cluster"
        )
    return Displaced(name, value, models, getattr(upload, cluster))


def client_clusters(call: Call, ids: Tensor, upload: Any) -> Tensor:
    """The cluster that each client was in when it trained, [a]; 0 where there is one model."""
    own = field_of_role(type(upload), Role.CLUSTER)
    if own is not None:
        found: Tensor = getattr(upload, own)
        return found
    for field in displaced_fields(call, ids, upload):
        if field.began is not None and field.models is not None and len(field.models) < len(ids):
            return field.began
    return torch.zeros_like(ids)


def displacement_blocks(fields: list[Displaced], *, moved: bool = True) -> Iterator[Tensor]:
    """What clients sent, [a, w], a block of columns after another.

    With `moved` it is what they are displaced by, and else what they sent.
    """
    for field in fields:
        for begin in range(0, field.value.shape[1], COLUMNS):
            columns = slice(begin, begin + COLUMNS)
            block = field.value[:, columns]
            yield block - field.origin(columns) if moved else block


def displacement_norms(fields: list[Displaced]) -> Tensor:
    """How far each client has moved, over all its fields together, [a], in double precision."""
    assert fields, "an upload without models"
    squares = torch.zeros(len(fields[0].value), dtype=torch.float64)
    for block in displacement_blocks(fields):
        squares += block.double().square().sum(1)
    return squares.sqrt()


def replace_fields(upload: Any, values: dict[str, Tensor]) -> Any:
    """The upload with other values of some fields, in the shapes they had."""
    return upload._replace(
        **{name: value.reshape(getattr(upload, name).shape) for name, value in values.items()}
    )
