"""The schema of a table: how its columns become numbers, fixed once for all who hold such a table.

A federation that lies on one machine learns this from sums over all clients. Where every node has a
table of its own, it is read off one table that stands for all, before anything is deployed, and
then holds for everybody: the same features, in the same order and scale, and the same classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from coterie.core.errors import CheckpointError, DataError
from coterie.data.federation import Federation, Samples
from coterie.data.tables.arrays import read_npz
from coterie.data.tables.client_rows import Rows, drop_small_clients, group_rows, split_rows
from coterie.data.tables.columns import Column, check_finite, client_column, read_column
from coterie.data.tables.encoding import Encoder, Indicator, OneHot, Scaled
from coterie.data.tables.labels import Labels, absent_labels, as_known_classes, check_label
from coterie.data.tables.read import existing_path, source_name
from coterie.data.tables.table import (
    PreparedTable,
    Table,
    encode_rows,
    is_array_folder,
    make_samples,
    split_arrays,
)

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Scaled, Indicator, OneHot)}


@dataclass(frozen=True)
class Schema:
    """What is fixed for all nodes; without encoders the samples are arrays, taken as they are."""

    encoders: tuple[Encoder, ...]
    classes: tuple[str, ...]  # empty for regression
    shape: tuple[int, ...]  # of one sample
    labelled: bool = True  # whether samples have a label; else that of a node is not looked at

    @classmethod
    def from_table(cls, prepared: PreparedTable) -> Schema:
        """The schema of a table that stands for all."""
        data = prepared.federation
        shape = tuple(data.train.x.shape[1:])
        return cls(prepared.encoders, data.classes, shape, data.labelled)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Schema:
        """The schema that `raw` wrote."""
        try:
            encoders = []
            for each in raw["encoders"]:
                fields = {name: value for name, value in each.items() if name != "kind"}
                if "words" in fields:
                    fields["words"] = tuple(fields["words"])
                encoders.append(KINDS[each["kind"]](**fields))
            shape, labelled = tuple(raw["shape"]), bool(raw.get("labelled", True))
            return cls(tuple(encoders), tuple(raw["classes"]), shape, labelled)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the schema of the app is damaged: {error!r}") from error

    def raw(self) -> dict[str, Any]:
        """As JSON takes it."""
        encoders = [{"kind": type(each).__name__, **asdict(each)} for each in self.encoders]
        found = {"encoders": encoders, "classes": list(self.classes), "shape": list(self.shape)}
        return found | {"labelled": self.labelled}

    def federation(self, settings: Table, seed: int) -> Federation:
        """The clients of the table or folder at `settings.path`, one or more, in this schema."""
        name = source_name(settings.path)
        if is_array_folder(settings.path) != (not self.encoders):
            kind = "tables" if self.encoders else ".npz arrays"
            raise DataError(f"{name} does not fit the app, which was made for {kind}")
        if not self.encoders:
            arrays = read_npz(existing_path(settings.path), fewest=1)
            if tuple(arrays.x.shape[1:]) != self.shape:
                raise DataError(
                    f"{name} does not fit the app: its samples have the shape "
                    f"{list(arrays.x.shape[1:])}, those of the app {list(self.shape)}"
                )
            clients = drop_small_clients(arrays.clients, settings.min_samples, fewest=1)
            labels = self.labels(arrays.label, clients.rows, len(arrays.x), name)
            return split_arrays(arrays, clients, labels, settings, seed, name)
        columns = ",".join(dict.fromkeys(encoder.column for encoder in self.encoders))
        label = settings.label if self.labelled else ""
        settings = replace(settings, features=columns, label=label)
        table = settings.read(settings.path)
        clients = group_rows(client_column(table, settings.client), fewest=1)
        clients = drop_small_clients(clients, settings.min_samples, fewest=1)
        own = read_column(table, label) if settings.has_label(table) else None
        labels = self.labels(own, clients.rows, len(table), name)
        for encoder in self.encoders:
            column = check_finite(read_column(table, encoder.column))
            if (column.kind == "text") != isinstance(encoder, OneHot):
                wanted = "text" if isinstance(encoder, OneHot) else "numbers"
                raise DataError(
                    f"{name} does not fit the app: the column `{encoder.column}` must hold {wanted}"
                )
        train, test = (
            make_samples(encode_rows(table, self.encoders, part), labels, part)
            for part in split_rows(clients, settings.train_share, seed)
        )
        return Federation(
            train,
            test,
            name=name,
            clients=clients.names,
            classes=self.classes,
            labelled=self.labelled,
        )

    def labels(self, column: Column | None, rows: Rows, count: int, name: str) -> Labels:
        """The labels of a column with `count` rows, numbered as everywhere."""
        if not self.labelled:
            return absent_labels(count)
        if column is None:
            raise DataError(f"{name} does not fit the app: it has no label")
        check_label(column)
        return as_known_classes(column, self.classes, rows)

    def stub(self, shape: Any, kind: torch.dtype) -> Federation:
        """One client with samples of no meaning, for what only shapes decide."""
        x = torch.zeros(2, *shape, dtype=kind)
        y = torch.tensor([0, len(self.classes) - 1]) if self.classes else torch.tensor([0.0, 1.0])
        return Federation(Samples(x, y, torch.tensor([0, 2])), labelled=self.labelled)
