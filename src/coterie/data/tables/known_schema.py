"""Federations of rows whose schema is known: those of a node, and those that come after a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.arrays import read_npz
from coterie.data.tables.client_rows import drop_small_clients, drop_unlabelled, group_rows
from coterie.data.tables.columns import as_text, client_column, read_column
from coterie.data.tables.encoding import OneHot, encode_rows
from coterie.data.tables.labels import absent_labels
from coterie.data.tables.read import existing_path, source_name
from coterie.data.tables.schema import Schema
from coterie.data.tables.table import (
    Table,
    encode_split,
    is_array_folder,
    make_samples,
    split_arrays,
    split_table,
)


def node_federation(schema: Schema, settings: Table, seed: int) -> Federation:
    """The clients of the table or folder at `settings.path`, one or more, split as everywhere."""
    name = source_name(settings.path)
    if is_array_folder(settings.path) != (not schema.encoders):
        kind = "tables" if schema.encoders else ".npz arrays"
        raise DataError(f"{name} does not fit the app, which was made for {kind}")
    if not schema.encoders:
        arrays = read_npz(existing_path(settings.path), fewest=1)
        if tuple(arrays.x.shape[1:]) != schema.shape:
            raise DataError(
                f"{name} does not fit the app: its samples have the shape "
                f"{list(arrays.x.shape[1:])}, those of the app {list(schema.shape)}"
            )
        clients = drop_small_clients(arrays.clients, settings.min_samples, fewest=1)
        labels = schema.labels(arrays.label, clients.rows, len(arrays.x), name)
        own = split_arrays(arrays, clients, labels, settings, seed, name)
        return replace(own, schema=schema)
    label = settings.label if schema.labelled else ""
    if settings.test:
        raise SettingError(
            "`test` must be empty over a network, where every node has a table of its own: name a "
            f"column, as in split=part, got {settings.test}"
        )
    settings = replace(settings, features=",".join(schema.columns), label=label, categorical="")
    table = settings.read(settings.path)
    check_categories(schema, table, name)
    clients = group_rows(client_column(table, settings.client), fewest=1)
    own_label = read_column(table, label) if settings.has_label(table) else None
    if own_label is not None:
        clients = drop_unlabelled(clients, own_label)
    clients = drop_small_clients(clients, settings.min_samples, fewest=1)
    labels = schema.labels(own_label, clients.rows, len(table), name)
    split = split_table(table, clients, labels, settings, seed)
    x = encode_rows(table, schema.encoders, split.train.rows)
    return encode_split(table, x, split, labels, schema, name)


def check_categories(schema: Schema, table: Any, name: str) -> None:
    """Refuse a column of numbers none of which is among the categories of the schema."""
    for encoder in schema.encoders:
        if isinstance(encoder, OneHot):
            column = read_column(table, encoder.column)
            found = set(as_text(column).categories)
            if column.kind != "text" and found and not found & set(encoder.words):
                raise DataError(
                    f"{name} does not fit the app: the column `{encoder.column}` must hold text"
                )


def new_federation(schema: Schema, source: Any) -> Federation:
    """The clients of new rows, one or more, with all their rows in the training part.

    Where the rows have no label, the federation is not `labelled`.
    """
    table = schema.read(source, wanted=(schema.client,))
    clients = group_rows(client_column(table, schema.client), fewest=1)
    labels, name = absent_labels(len(table)), source_name(source, "own data")
    if schema.labelled and schema.label in table.column_names:
        column = read_column(table, schema.label)
        if not bool(column.missing.all()):
            labels = schema.labels(column, np.arange(len(table)), len(table), name)
    x = torch.from_numpy(encode_rows(table, schema.encoders, clients.rows))
    return Federation(
        make_samples(x, labels, clients),
        name=name,
        clients=clients.names,
        features=schema.features,
        classes=schema.classes,
        labelled=labels.given,
        schema=schema,
    )
