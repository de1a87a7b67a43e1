"""A table of your own: any file with a column that says whose row it is, and maybe one to predict.

`path` is a CSV, Parquet, Feather or Arrow file, or a folder with one .csv, .parquet or .npz file
for each client, named after it. In a .npz file x and y are taken as they are; of a table the
columns become features of type float32:

- numbers and booleans lose the mean and are divided by the standard deviation; dates and times
  are numbers of days. A missing one becomes the mean, and a column that has any gets a second
  feature that is 1 where it is missing.
- text becomes one feature for each of its `categories` most frequent values; rarer ones share one
  more, and missing values have one of their own. Values that only the test part has go with the
  rarer ones; where there are none, all features of that text are 0.
- a column that is constant, and text that is different in every row, is left out.

Nothing is pooled to learn this. A client says how many values it has, their sum and their sum of
squares, and how often it has each category; these are added up. Test rows have no part in it.

Labels that are text, booleans, or whole numbers of few kinds are classes; real numbers, and whole
ones of many kinds, are targets of a regression. `target` says otherwise. Targets are scaled as
numbers are, so that losses have no unit; predictions are in the label's. A table without a label is
for algorithms that cluster samples; where it has one, their clusters are scored by it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieWarning, DataError, SettingError
from coterie.data.federation import Federation, Samples
from coterie.data.tables.arrays import Arrays, read_npz
from coterie.data.tables.client_rows import (
    ClientRows,
    drop_small_clients,
    drop_unlabelled,
    group_rows,
)
from coterie.data.tables.columns import as_text, check_finite, client_column, read_column
from coterie.data.tables.encoding import Encoder, encode_rows, fit_encoder, shared_unit
from coterie.data.tables.labels import (
    AS_THEY_ARE,
    Labels,
    absent_labels,
    count_classes,
    fit_target,
    read_labels,
    target_doubts,
    whole_if_gaps,
)
from coterie.data.tables.missing import blank_missing
from coterie.data.tables.quality import numeric_text_problems
from coterie.data.tables.read import (
    append_rows,
    client_files,
    existing_path,
    file_kind,
    read_table,
    source_name,
)
from coterie.data.tables.schema import Schema
from coterie.data.tables.splits import TEST, TRAIN, Split, SplitBy, named_parts, split_clients
from coterie.data.tables.table_settings import USUAL_LABEL, TableSettings

# The largest second moment of a client's features with which the step size 0.1 is safe: that of a
# linear model must be below 1 / (moment + 1) with squared errors, 4 / (moment + 1) with classes.
MOST_CURVED = {"regression": 7.0, "classification": 30.0}


@dataclass(frozen=True, kw_only=True)
class Table(TableSettings):
    """A table of your own: a file or folder of rows, each with its client and maybe its label."""

    def build(self, seed: int) -> Federation:
        """The federation of the table at `path`."""
        return self.prepare(self.path, seed)

    def prepare(self, source: Any, seed: int) -> Federation:
        """The federation of any source, a path or an object."""
        if is_array_folder(source):
            return prepare_arrays(read_npz(existing_path(source)), self, seed, source_name(source))
        return prepare_table(self.read(source), self, seed, source_name(source, "own data"))

    def read(self, source: Any) -> Any:
        """The Arrow table of a source, checked to have the columns that the settings name."""
        label = [self.label] if self.label else []
        named = [] if self.label == USUAL_LABEL else label
        categories = self.category_columns
        table = read_table(
            source,
            client=self.client,
            wanted=[self.client, *named, *self.columns, *self.split_columns, *categories],
            welcome=label,
            only=bool(self.columns),
            text=categories,
        )
        own = label if self.has_label(table) else []
        chosen = self.chosen(table)
        table = blank_missing(table, self.missing_words, [*own, *chosen])
        others = [name for name in self.split_columns if name not in chosen]
        return table.select([self.client, *own, *chosen, *others])

    def read_test(self, like: Any) -> Any:
        """The rows of `test`, with the columns of a table that was read."""
        rows = self.read(self.test)
        lacking = [name for name in like.column_names if name not in rows.column_names]
        if lacking:
            raise DataError(
                f"{source_name(self.test)} must have the columns of the other rows: it has no "
                f"`{lacking[0]}`"
            )
        return rows.select(like.column_names)

    def has_label(self, table: Any) -> bool:
        """Whether a table has the label column; one that the user names it must have."""
        return self.label != "" and self.label in table.column_names

    def chosen(self, table: Any) -> list[str]:
        """The columns of features."""
        taken = {self.client, self.label, *self.split_columns} - {""}
        return self.columns or [name for name in table.column_names if name not in taken]


def is_array_folder(source: Any) -> bool:
    """Whether a source is a folder of `.npz` files."""
    if not isinstance(source, str | Path) or not existing_path(source).is_dir():
        return False
    return file_kind(client_files(existing_path(source))[0]) == ".npz"


def prepare_arrays(arrays: Arrays, settings: Table, seed: int, name: str) -> Federation:
    """The federation of arrays, split."""
    given = [*settings.split_columns, *([settings.test] if settings.test else [])]
    if given:
        raise SettingError(f"arrays are split by chance, for they have no columns, got {given[0]}")
    clients = drop_small_clients(arrays.clients, settings.min_samples)
    labels = (
        absent_labels(len(arrays.x))
        if arrays.label is None
        else read_labels(arrays.label, settings.target, clients.rows)
    )
    federation = split_arrays(arrays, clients, labels, settings, seed, name)
    return replace(federation, schema=Schema.of_federation(federation))


def split_arrays(
    arrays: Arrays, clients: ClientRows, labels: Labels, settings: Table, seed: int, name: str
) -> Federation:
    """The federation of these clients' arrays, each split in training and test."""
    split = split_clients(clients, split_by_chance(settings, labels, seed))
    train, test = (
        make_samples(arrays.x[torch.from_numpy(part.rows)], labels, part)
        for part in (split.train, split.test)
    )
    return Federation(
        train,
        test,
        name=name,
        clients=clients.names,
        classes=labels.classes,
        labelled=labels.given,
    )


def split_by_chance(settings: Table, labels: Labels, seed: int) -> SplitBy:
    """What decides the part of a row where no column does."""
    key = labels.values if settings.stratify and labels.given else None
    return SplitBy(settings.train_share, seed, key)


def split_table(
    table: Any, clients: ClientRows, labels: Labels, settings: Table, seed: int, tested: int = 0
) -> Split:
    """The parts of a table whose last `tested` rows are those of a file to be tested on."""
    by = split_by_chance(settings, labels, seed)
    if settings.test:
        part = np.full(len(table), TRAIN)
        part[len(table) - tested :] = TEST
        by = by._replace(part=part)
    elif settings.split:
        by = by._replace(part=named_parts(as_text(read_column(table, settings.split))))
    elif settings.group:
        by = by._replace(group=read_column(table, settings.group))
    elif settings.time:
        by = by._replace(time=read_column(table, settings.time))
    return split_clients(clients, by)


def prepare_table(table: Any, settings: Table, seed: int, name: str) -> Federation:
    """The federation of an Arrow table, split and encoded."""
    tested = 0
    if settings.test:
        rows = settings.read_test(table)
        table, tested = append_rows(table, rows, source_name(settings.test)), len(rows)
    clients = group_rows(client_column(table, settings.client))
    label = None
    if settings.has_label(table):
        label = whole_if_gaps(read_column(table, settings.label))
    if label is not None:
        clients = drop_unlabelled(clients, label)
    clients = drop_small_clients(clients, settings.min_samples)
    labels = absent_labels(len(table))
    if label is not None:
        labels = read_labels(label, settings.target, clients.rows)
        for doubt in target_doubts(label, settings.target, clients.rows):
            warnings.warn(doubt, CoterieWarning, stacklevel=4)
    split = split_table(table, clients, labels, settings, seed, tested)
    encoders = fit_encoders(table, settings, split.train)
    target = fit_target(labels, split.train) if settings.scale_target else AS_THEY_ARE
    x = encode_rows(table, encoders, split.train.rows)
    if settings.standardise:
        most = MOST_CURVED["regression" if labels.regression else "classification"]
        unit = shared_unit(x, split.train.offsets, most)
        encoders, x = [replace(encoder, unit=unit) for encoder in encoders], x / np.float32(unit)
    schema = Schema(
        tuple(encoders),
        labels.classes,
        x.shape[1:],
        labels.given,
        client=settings.client,
        label=settings.label,
        target=target,
        rows=int(np.median(np.diff(split.train.offsets))),
        missing=settings.missing_words,
        class_counts=count_classes(labels, split.train),
    )
    return encode_split(table, x, split, labels.scaled(target), schema, name)


def encode_split(
    table: Any, x: NDArray[np.float32], split: Split, labels: Labels, schema: Schema, name: str
) -> Federation:
    """The federation of a table's parts by a schema; x are the features of the training rows."""

    def encoded(part: ClientRows) -> Samples:
        rows = encode_rows(table, schema.encoders, part.rows)
        return make_samples(torch.from_numpy(rows), labels, part)

    return Federation(
        make_samples(torch.from_numpy(x), labels, split.train),
        encoded(split.test),
        validation=None if split.validation is None else encoded(split.validation),
        name=name,
        clients=split.train.names,
        features=schema.features,
        classes=labels.classes,
        labelled=labels.given,
        schema=schema,
        time=None if split.order is None else torch.from_numpy(split.order),
        group=None if split.group is None else torch.from_numpy(split.group),
    )


def fit_encoders(table: Any, settings: Table, train: ClientRows) -> list[Encoder]:
    """How to write each column, by its training rows; what is left out is a warning."""
    encoders: list[Encoder] = []
    left_out: dict[str, list[str]] = {}
    for name in settings.chosen(table):
        column = check_finite(read_column(table, name))
        known = name in settings.category_columns
        column = as_text(column) if known else column
        for problem in [] if known else numeric_text_problems(column):
            warnings.warn(problem, CoterieWarning, stacklevel=5)
        answer = fit_encoder(
            column, train, categories=settings.categories, standardise=settings.standardise
        )
        if isinstance(answer, str):
            left_out.setdefault(answer, []).append(name)
        else:
            encoders.append(answer)
    reasons = [f"{', '.join(names)} ({reason})" for reason, names in left_out.items()]
    if not encoders:
        others = [settings.client, *([settings.label] if settings.has_label(table) else [])]
        raise SettingError(
            f"a table needs a column of features besides {' and '.join(f'`{o}`' for o in others)}, "
            f"got {' and '.join(reasons) or 'none'}"
        )
    if reasons:
        warnings.warn(f"columns left out: {'; '.join(reasons)}", CoterieWarning, stacklevel=5)
    return encoders


def make_samples(x: Tensor, labels: Labels, part: ClientRows) -> Samples:
    """Samples of features that are in the order of `part`, with the labels of those rows."""
    y = torch.from_numpy(labels.values[part.rows])
    return Samples(x, y.float() if labels.regression else y, torch.from_numpy(part.offsets))
