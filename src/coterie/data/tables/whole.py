"""A table of which every row is trained on: nothing is held out for a test."""

from __future__ import annotations

from typing import Any

import torch

from coterie.data.federation import Federation
from coterie.data.tables.client_rows import group_rows
from coterie.data.tables.columns import client_column, read_column
from coterie.data.tables.encoding import encode_rows
from coterie.data.tables.labels import AS_THEY_ARE, fit_target, read_labels
from coterie.data.tables.schema import Schema
from coterie.data.tables.table import Table, fit_encoders, make_samples


def whole_federation(table: Any, settings: Table) -> Federation:
    """The clients of an Arrow table, one or more, who train on all of their rows."""
    clients = group_rows(client_column(table, settings.client), fewest=1)
    labels = read_labels(read_column(table, settings.label), settings.target, clients.rows)
    encoders = fit_encoders(table, settings, clients)
    target = fit_target(labels, clients) if settings.scale_target else AS_THEY_ARE
    x = torch.from_numpy(encode_rows(table, encoders, clients.rows))
    schema = Schema(
        tuple(encoders),
        labels.classes,
        tuple(x.shape[1:]),
        client=settings.client,
        label=settings.label,
        target=target,
    )
    return Federation(
        make_samples(x, labels.scaled(target), clients),
        name="own data",
        clients=clients.names,
        features=schema.features,
        classes=labels.classes,
        schema=schema,
    )
