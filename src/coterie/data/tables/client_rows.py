"""Which rows belong to which client."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieWarning, DataError
from coterie.data.tables.columns import Column

Rows = NDArray[np.int64]


class ClientRows(NamedTuple):
    """Rows of a table, one client after another."""

    names: tuple[str, ...]  # [m]
    rows: Rows  # [N] places in the table
    offsets: Rows  # [m + 1]: client i has rows[offsets[i]:offsets[i + 1]]

    def chosen(self, mask: NDArray[np.bool_]) -> ClientRows:
        """The same clients with some of their rows [N], maybe none of some."""
        owner = np.repeat(np.arange(len(self.names)), np.diff(self.offsets))
        sizes = np.bincount(owner[mask], minlength=len(self.names))
        return ClientRows(self.names, self.rows[mask], offsets_of(sizes))

    def without_empty(self) -> ClientRows:
        """The clients that have rows."""
        sizes = np.diff(self.offsets)
        pairs = zip(self.names, sizes.tolist(), strict=True)
        names = tuple(name for name, size in pairs if size)
        return ClientRows(names, self.rows, offsets_of(sizes[sizes > 0]))


def group_rows(client: Column, *, fewest: int = 2) -> ClientRows:
    """The rows of every client, in the order of their names and of the table."""
    if len(client.categories) < fewest:
        raise DataError(
            f"a federation needs two clients or more, but every row has {client.name} = "
            f"{client.categories[0]}"
        )
    sizes = np.bincount(client.values, minlength=len(client.categories))
    return ClientRows(
        client.categories, np.argsort(client.values, kind="stable"), offsets_of(sizes)
    )


def drop_small_clients(clients: ClientRows, least: int, *, fewest: int = 2) -> ClientRows:
    """The clients with `least` rows or more; how many are left out is a warning."""
    sizes = np.diff(clients.offsets)
    stay = sizes >= least
    out = int((~stay).sum())
    if not out:
        return clients
    if stay.sum() < fewest:
        needs = "two clients or more" if fewest == 2 else "a client"
        raise DataError(
            f"a federation needs {needs} of at least `min_samples` rows, {least:,}, "
            f"got {int(stay.sum()):,} of {len(sizes):,}; the largest has {sizes.max():,}"
        )
    warnings.warn(
        f"{out:,} of {len(sizes):,} clients are left out, with {sizes[~stay].sum():,} rows in all: "
        f"they have fewer than `min_samples`, {least:,}",
        CoterieWarning,
        stacklevel=2,
    )
    names = tuple(name for name, keep in zip(clients.names, stay.tolist(), strict=True) if keep)
    return ClientRows(names, clients.rows[np.repeat(stay, sizes)], offsets_of(sizes[stay]))


def drop_unlabelled(clients: ClientRows, label: Column) -> ClientRows:
    """The rows that have a label; how many are left out is a warning.

    Where none has one, all stay, to be refused.
    """
    labelled = ~label.missing[clients.rows]
    out = int((~labelled).sum())
    if not out or out == len(labelled):
        return clients
    warnings.warn(
        f"{out:,} of {len(labelled):,} rows have no label in the column `{label.name}` and are "
        "left out",
        CoterieWarning,
        stacklevel=2,
    )
    return clients.chosen(labelled)


def offsets_of(sizes: NDArray[np.int64] | list[int]) -> Rows:
    """Offsets of groups of such sizes, beginning with 0."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
