"""New rows: their features, whose they are, and the labels of those that have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.client_samples import as_tensor
from coterie.data.tables.columns import Column, client_column, read_column
from coterie.data.tables.read import first_line, import_arrow
from coterie.data.tables.schema import Schema

NOBODY = ""  # the name of the one client of rows that no client is told of


class NewRows(NamedTuple):
    """n rows in the order in which they came."""

    x: Any  # [n, ...] features
    names: tuple[str, ...]  # of the clients that occur
    owner: NDArray[np.int64]  # [n] whose row it is, a place in `names`
    label: Column | None = None  # [n] labels as they are in the table, some maybe missing

    def of(self, place: int) -> Tensor:
        """The rows of a client, in their order."""
        return torch.from_numpy(np.flatnonzero(self.owner == place))

    def by_client(self) -> list[tuple[str, Tensor]]:
        """Every client's name and rows."""
        order = torch.from_numpy(np.argsort(self.owner, kind="stable"))
        sizes = np.bincount(self.owner, minlength=len(self.names)).tolist()
        return list(zip(self.names, order.split(sizes), strict=True))


def read_rows(source: Any, schema: Schema | None, client: Any = None) -> NewRows:
    """The rows of a file, a frame, an Arrow table or an array, as the schema of a run has them.

    `client` says whose they are: one name for all, or a name for each. Without it the column of
    the schema does, and where there is none, all rows are those of one new client.
    """
    if schema is None or not schema.encoders:
        x = as_tensor(source) if schema is None else schema.encode(source)
        if x.dtype == torch.float64:
            x = x.float()
        return NewRows(x, *whose_rows(client, len(x)))
    table = schema.read(source)
    x = schema.encode(table)
    if client is None and schema.client in table.column_names:
        column = client_column(table, schema.client)
        names, owner = column.categories, column.values
    else:
        names, owner = whose_rows(client, len(x))
    label = None
    if schema.labelled and schema.label in table.column_names:
        label = read_column(table, schema.label)
    return NewRows(x, names, owner, label)


def whose_rows(client: Any, count: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of clients and whose each of `count` rows is, by one name or by one for each."""
    if client is None or np.ndim(client) == 0:
        name = NOBODY if client is None else client_name(client)
        return (name,), np.zeros(count, np.int64)
    column = named_clients(list(client))
    if len(column.values) != count:
        raise DataError(
            f"`client` must be one name, or one for each row: there are {count} rows and "
            f"{len(column.values)} names"
        )
    return column.categories, column.values


def client_name(client: Any) -> str:
    """The name of a client as the run has it, where 4, 4.0 and "4.0" are one.

    >>> client_name(4.0), client_name("ward 4")
    ('4', 'ward 4')
    """
    return named_clients([client]).categories[0]


def named_clients(names: list[Any]) -> Column:
    """Names of clients as a column of a table has them."""
    try:
        return client_column(import_arrow().table({"client": names}), "client")
    except (TypeError, ValueError) as error:
        raise DataError(f"`client` must be names or whole numbers: {first_line(error)}") from error


def labels_of(
    label: Column | None, schema: Schema | None, rows: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Those of `rows` [r] that have a label, and these labels as the task takes them."""
    if label is None or schema is None:
        return None
    some = rows.numpy()[~label.missing[rows.numpy()]]
    if not len(some):
        return None
    own = replace(label, values=label.values[some])
    found = schema.labels(own, np.arange(len(some)), len(some), "the table")
    return torch.from_numpy(some), torch.from_numpy(found.values)
