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

Labels that are text, booleans, or whole numbers of at most 100 kinds are classes; real numbers
are targets of a regression. `target` says otherwise. Targets are scaled as numbers are, so that
losses have no unit; predictions are in the label's. A table without a label is for algorithms that
cluster samples; where it has one, their clusters are scored by it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.errors import CoterieWarning, SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, between, one_of
from coterie.data.federation import Federation, Samples
from coterie.data.tables.arrays import Arrays, read_npz
from coterie.data.tables.client_rows import ClientRows, drop_small_clients, group_rows, split_rows
from coterie.data.tables.columns import check_finite, client_column, read_column
from coterie.data.tables.encoding import Encoder, encode_rows, fit_encoder
from coterie.data.tables.labels import (
    AS_THEY_ARE,
    TARGETS,
    Labels,
    absent_labels,
    fit_target,
    looks_like_classes,
    read_labels,
)
from coterie.data.tables.quality import numeric_text_problems
from coterie.data.tables.read import client_files, existing_path, file_kind, read_table, source_name
from coterie.data.tables.schema import Schema

USUAL_LABEL = "label"  # a table may lack the column of this name, and has no label then


@dataclass(frozen=True, kw_only=True)
class Table(Settings):
    """A table of your own: a file or folder of rows, each with its client and maybe its label."""

    path: str = setting(
        "", "a .csv, .parquet, .feather or .arrow file, or a folder with a file per client"
    )
    client: str = setting("client", "column that says whose row it is; in a folder the file does")
    label: str = setting(
        USUAL_LABEL, "column to predict, or to score clusters of samples by; empty: none"
    )
    features: str = setting("", "columns to predict from, with commas between; empty: all others")
    target: str = setting("auto", "what the label is; auto: by its type", one_of(*TARGETS))
    train_share: float = setting(0.8, "share of a client's rows that it trains on", between(0, 1))
    min_samples: int = setting(2, "rows that a client must have, else it is left out", at_least(2))
    categories: int = setting(20, "features from text at most; rarer values share one", at_least(1))
    standardise: bool = setting(True, "whether numbers are scaled to mean 0 and deviation 1")
    scale_target: bool = setting(
        True, "whether targets of a regression are scaled so, to learn", added=True, before=False
    )

    class_count: ClassVar[int] = 0  # as many as the labels show
    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = {
        "network": "mlp",
        "hidden": 32,
        "split_seed": 0,
        "validation": 0.15,
        "early_stopping": 20,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client == self.label:
            raise SettingError(
                f"`client` and `label` of Table must be two columns, got {self.label} for both"
            )
        named = self.columns
        for column in named:
            if column in (self.client, self.label):
                raise SettingError(
                    f"`features` of Table must not name the client or the label, got {column}"
                )
        if len(set(named)) < len(named):
            raise SettingError(
                f"`features` of Table must name a column once, got {','.join(named)}"
            )

    @property
    def columns(self) -> list[str]:
        """The columns that `features` names; none: all but the client and the label."""
        return [name.strip() for name in self.features.split(",") if name.strip()]

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
        table = read_table(
            source,
            client=self.client,
            wanted=[self.client, *named, *self.columns],
            welcome=label,
            only=bool(self.columns),
        )
        own = label if self.has_label(table) else []
        return table.select([self.client, *own, *self.chosen(table)])

    def has_label(self, table: Any) -> bool:
        """Whether a table has the label column; one that the user names it must have."""
        return self.label != "" and self.label in table.column_names

    def chosen(self, table: Any) -> list[str]:
        """The columns of features."""
        taken = {self.client, self.label} if self.label else {self.client}
        return self.columns or [name for name in table.column_names if name not in taken]


def is_array_folder(source: Any) -> bool:
    """Whether a source is a folder of `.npz` files."""
    if not isinstance(source, str | Path) or not existing_path(source).is_dir():
        return False
    return file_kind(client_files(existing_path(source))[0]) == ".npz"


def prepare_arrays(arrays: Arrays, settings: Table, seed: int, name: str) -> Federation:
    """The federation of arrays, split."""
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
    train, test = (
        make_samples(arrays.x[torch.from_numpy(part.rows)], labels, part)
        for part in split_rows(clients, settings.train_share, seed)
    )
    return Federation(
        train,
        test,
        name=name,
        clients=clients.names,
        classes=labels.classes,
        labelled=labels.given,
    )


def prepare_table(table: Any, settings: Table, seed: int, name: str) -> Federation:
    """The federation of an Arrow table, split and encoded."""
    clients = drop_small_clients(
        group_rows(client_column(table, settings.client)), settings.min_samples
    )
    labels = absent_labels(len(table))
    if settings.has_label(table):
        label = read_column(table, settings.label)
        labels = read_labels(label, settings.target, clients.rows)
        if settings.target == "auto" and looks_like_classes(label):
            warnings.warn(
                f"the label column `{label.name}` holds a few whole numbers but is of a real type, "
                "so it is taken for a regression: say target=classification if they are classes",
                CoterieWarning,
                stacklevel=4,
            )
    parts = split_rows(clients, settings.train_share, seed)
    encoders = fit_encoders(table, settings, parts[0])
    target = fit_target(labels, parts[0]) if settings.scale_target else AS_THEY_ARE
    labels = labels.scaled(target)
    train, test = (
        make_samples(torch.from_numpy(encode_rows(table, encoders, part.rows)), labels, part)
        for part in parts
    )
    schema = Schema(
        tuple(encoders),
        labels.classes,
        tuple(train.x.shape[1:]),
        labels.given,
        client=settings.client,
        label=settings.label,
        target=target,
    )
    return Federation(
        train,
        test,
        name=name,
        clients=clients.names,
        features=schema.features,
        classes=labels.classes,
        labelled=labels.given,
        schema=schema,
    )


def fit_encoders(table: Any, settings: Table, train: ClientRows) -> list[Encoder]:
    """How to write each column, by its training rows; what is left out is a warning."""
    encoders: list[Encoder] = []
    left_out: dict[str, list[str]] = {}
    for name in settings.chosen(table):
        column = check_finite(read_column(table, name))
        for problem in numeric_text_problems(column):
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
