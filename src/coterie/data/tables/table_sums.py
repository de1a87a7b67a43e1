"""What a node says of its own table, so that a schema can be learnt without a pooled one.

Four questions, each answered with sums over the clients of the node and nothing of a single row:

    columns  names and kinds of the columns; of a label of classes how many rows have each
    sums     of numbers how many are known and their sum; of categories how many rows have each
    spread   of numbers the sum, and the sum of squares, of the distances to the mean of all nodes
    unit     the largest eigenvalue of a client's mean of x x', which limits the step size

Names of categories and classes are values of rows. One is said only if at least `least` rows of the
node have it; the other rows are counted together. Of a column of numbers nothing is said that fewer
rows stand behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.errors import DataError, SettingError
from coterie.data.tables.client_rows import (
    ClientRows,
    drop_small_clients,
    drop_unlabelled,
    group_rows,
)
from coterie.data.tables.columns import (
    Column,
    as_text,
    check_finite,
    client_column,
    read_column,
    text_as_dates,
    text_as_numbers,
)
from coterie.data.tables.encoding import encode_rows, largest_of_clients
from coterie.data.tables.labels import (
    AS_THEY_ARE,
    MANY,
    Labels,
    absent_labels,
    as_known_classes,
    check_label,
    whole_if_gaps,
)
from coterie.data.tables.schema import Schema
from coterie.data.tables.statistics import category_counts, client_sums, total_counts
from coterie.data.tables.table import MOST_CURVED, Table, is_array_folder, split_table

Answer = dict[str, Any]  # plain data, as JSON has it


class TableSums:
    """The table of a node, and what is said of it.

    allowed  the columns that may be told of; none: all
    least    rows of the node that must stand behind what is said
    smallest training rows that a client must have to count
    bounds   which of so many clients are those of the node, the first and that after the last
    """

    def __init__(
        self,
        settings: Table,
        seed: int,
        *,
        allowed: frozenset[str] = frozenset(),
        least: int = 1,
        smallest: int = 1,
        bounds: Callable[[int], tuple[int, int]] = lambda count: (0, count),
    ) -> None:
        if is_array_folder(settings.path):
            raise DataError("a schema is learnt from tables, and this node has .npz arrays")
        if settings.test:
            raise SettingError(f"`test` must be empty over a network, got {settings.test}")
        table = settings.read(settings.path)
        chosen = settings.chosen(table)
        if allowed:
            named = [settings.client, *settings.split_columns]
            named += [settings.label] if settings.has_label(table) else []
            if not {*named, *settings.columns} <= allowed:
                raise DataError("the app uses columns that the operator of this node has not named")
            chosen = [name for name in chosen if name in allowed]
        self.settings, self.seed, self.least, self.smallest = settings, seed, least, smallest
        self.table, self.chosen = table, chosen
        clients = group_rows(client_column(table, settings.client), fewest=1)
        self.label: Column | None = None
        if settings.has_label(table):
            self.label = whole_if_gaps(read_column(table, settings.label))
            clients = drop_unlabelled(clients, self.label)
        clients = drop_small_clients(clients, settings.min_samples, fewest=1)
        begin, end = bounds(len(clients.names))
        offsets = clients.offsets[begin : end + 1]
        rows = clients.rows[offsets[0] : offsets[-1]]
        own = ClientRows(clients.names[begin:end], rows, offsets - offsets[0])
        self.clients = large_clients(own, smallest)

    def columns(self) -> Answer:
        """Names and kinds of columns, and what the label looks like."""
        found = []
        for name in self.chosen:
            column = read_column(self.table, name)
            category = name in self.settings.category_columns
            kind = "text" if category else column.kind
            kind = "number" if kind in ("whole", "bool") else kind
            found.append([name, "" if bool(column.missing.all()) and not category else kind])
        label: Answer | None = None
        if self.label is not None:
            used = replace(self.label, values=self.label.values[self.clients.rows])
            check_label(used)
            text = as_text(used)
            counts = np.bincount(text.values, minlength=len(text.categories))
            label = {"kind": used.kind, "distinct": min(int((counts > 0).sum()), MANY + 1)}
            if used.kind != "number":
                label |= self.named(dict(zip(text.categories, counts.tolist(), strict=True)))
        return {"columns": found, "label": label}

    def sums(self, asked: Answer) -> Answer:
        """Sums over the training rows: counts, totals, and how often there is each category."""
        train, labels = self.training_rows(asked)
        numbers, texts = {}, {}
        for name, kind in asked["columns"]:
            column = self.column(name, kind)
            values = column.values[train.rows]
            if kind == "text":
                counted = category_counts(values, train.offsets, len(column.categories))
                *counts, missing = total_counts(counted).tolist()
                named = self.named(dict(zip(column.categories, counts, strict=True)))
                texts[name] = {**named, "missing": missing}
            else:
                told = client_sums(values, train.offsets)
                known = float(told.known.sum())
                enough = known >= self.least
                numbers[name] = [known, float(told.total.sum())] if enough else [0.0, 0.0]
        own = labels.values[train.rows]
        found: Answer = {"sizes": np.diff(train.offsets).tolist(), "numbers": numbers}
        found["texts"] = texts
        if labels.classes:
            counts = np.bincount(own, minlength=len(labels.classes))
            found["classes"] = np.where(counts < self.least, 0, counts).tolist()
        if labels.regression:
            found["target"] = [float(len(own)), float(client_sums(own, train.offsets).total.sum())]
        return found

    def spread(self, asked: Answer) -> Answer:
        """Sums of the distances to the means that were asked about, and of their squares."""
        train, labels = self.training_rows(asked)
        kinds = dict(asked["columns"])
        numbers = {}
        for name, mean in asked["means"].items():
            values = self.column(name, kinds[name]).values[train.rows]
            told = client_sums(values, train.offsets, about=mean)
            enough = float(told.known.sum()) >= self.least
            far = [float(told.total.sum()), float(told.squares.sum())]
            numbers[name] = far if enough else [0.0, 0.0]
        found: Answer = {"numbers": numbers}
        if labels.regression:
            own = labels.values[train.rows]
            told = client_sums(own, train.offsets, about=asked["target_mean"])
            found["target"] = [float(told.total.sum()), float(told.squares.sum())]
        return found

    def unit(self, asked: Answer) -> Answer:
        """The largest eigenvalue of any client's features by a schema."""
        train, labels = self.training_rows(asked)
        x = encode_rows(self.table, Schema.of(asked["schema"]).encoders, train.rows)
        most = MOST_CURVED["regression" if labels.regression else "classification"]
        return {"largest": largest_of_clients(x, train.offsets, most)}

    def named(self, counts: dict[str, int]) -> Answer:
        """The categories that enough rows have, and how many rows have others."""
        known = {name: count for name, count in counts.items() if count >= self.least}
        return {"counts": known, "rest": sum(counts.values()) - sum(known.values())}

    def column(self, name: str, kind: str) -> Column:
        """A column as all nodes take it."""
        if name not in self.chosen:
            raise DataError(f"the column `{name}` is not one of those that are told of")
        column = read_column(self.table, name)
        if kind == "text":
            return as_text(column)
        return check_finite(text_as_dates(column) if kind == "date" else text_as_numbers(column))

    def training_rows(self, asked: Answer) -> tuple[ClientRows, Labels]:
        """The rows that clients train on, and the labels of all rows, not scaled."""
        count = len(self.table)
        labels = absent_labels(count)
        if self.label is not None and asked["target"]:
            classes = tuple(asked["classes"])
            labels = as_known_classes(self.label, classes, self.clients.rows, AS_THEY_ARE)
            if not classes:
                labels = Labels(text_as_numbers(self.label).values, ())
        train = split_table(self.table, self.clients, labels, self.settings, self.seed).train
        return large_clients(train, self.smallest), labels


def large_clients(clients: ClientRows, least: int) -> ClientRows:
    """The clients with so many rows or more; a node with none of these has nothing to say."""
    sizes = np.diff(clients.offsets)
    found = clients.chosen(np.repeat(sizes >= least, sizes)).without_empty()
    if not found.names:
        raise DataError(f"no client of this node has {least} rows to train on")
    return found
