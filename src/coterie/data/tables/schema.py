"""The schema of a table: how its columns become numbers, fixed once for all who hold such rows.

A federation that lies on one machine learns this from sums over all clients. Where every node has a
table of its own, it is read off one table that stands for all, before anything is deployed, and
then holds for everybody: the same features, in the same order and scale, and the same classes. A
run leaves it in its folder, so that rows which come later are read alike:

    version    1, of what is in the file
    client     the column that says whose row it is
    label      the column that is predicted
    labelled   whether there was one in training
    classes    what the outputs 0, 1, ... of a model mean; none for a regression
    target     of a regression: a model's output times `scale` plus `centre` is in the label's units
    rows       how many a client trained on, the median: what a network of fitting size goes by
    class_counts  how often clients had each class to train on, in all
    missing    values that mean missing, besides empty ones
    shape      of one sample
    features   names of the numbers of a sample, in their order
    encoders   how each column becomes features, in the order of these; none where samples are
               arrays, which are taken as they are. By `kind`:
                 Scaled     (value - centre) / scale, `fill` in place of a missing value, then 1
                            where it is missing if `indicator`; `date`: the value is in days
                 Indicator  1 where the value is missing
                 OneHot     a feature for each of `words`, then one for all others if `other`, then
                            one for missing values if `missing`; 1 in that of the value
               all features of a column are then divided by its `unit`, mostly 1
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CheckpointError, DataError
from coterie.data.client_samples import as_tensor
from coterie.data.federation import Federation, Samples
from coterie.data.tables.client_rows import Rows
from coterie.data.tables.columns import Column
from coterie.data.tables.encoding import Encoder, Indicator, OneHot, Scaled, encode_rows
from coterie.data.tables.labels import (
    AS_THEY_ARE,
    Labels,
    TargetScale,
    absent_labels,
    as_known_classes,
    check_label,
)
from coterie.data.tables.missing import blank_missing
from coterie.data.tables.read import read_table

VERSION = 1  # of schema.json
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Scaled, Indicator, OneHot)}


@dataclass(frozen=True)
class Schema:
    """What is fixed for all rows; without encoders the samples are arrays, taken as they are."""

    encoders: tuple[Encoder, ...]
    classes: tuple[str, ...]  # empty for regression
    shape: tuple[int, ...]  # of one sample
    labelled: bool = True  # whether samples have a label; else that of a node is not looked at
    client: str = "client"  # the columns of these names
    label: str = "label"
    target: TargetScale = AS_THEY_ARE
    rows: int = 0  # that a client trains on, the median; 0: not known
    missing: tuple[str, ...] = ()  # values that mean missing
    class_counts: tuple[int, ...] = ()  # how often clients have each class to train on

    @classmethod
    def of_federation(cls, data: Federation) -> Schema:
        """The schema of samples that are arrays."""
        return cls((), data.classes, tuple(data.train.x.shape[1:]), data.labelled)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Schema:
        """The schema that `raw` wrote, in this version of coterie or an earlier one."""
        try:
            if raw.get("version", VERSION) > VERSION:
                raise CheckpointError(
                    f"the schema is of version {raw['version']}, but this coterie reads up to "
                    f"{VERSION}: install a newer one"
                )
            encoders = []
            for each in raw["encoders"]:
                fields = {name: value for name, value in each.items() if name != "kind"}
                if "words" in fields:
                    fields["words"] = tuple(fields["words"])
                encoders.append(KINDS[each["kind"]](**fields))
            return cls(
                tuple(encoders),
                tuple(raw["classes"]),
                tuple(raw["shape"]),
                bool(raw.get("labelled", True)),
                str(raw.get("client", "client")),
                str(raw.get("label", "label")),
                TargetScale(**raw.get("target", {})),
                int(raw.get("rows", 0)),
                tuple(raw.get("missing", ())),
                tuple(raw.get("class_counts", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the schema is damaged: {error!r}") from error

    def raw(self) -> dict[str, Any]:
        """As JSON takes it."""
        encoders = [{"kind": type(each).__name__, **asdict(each)} for each in self.encoders]
        return {
            "version": VERSION,
            "client": self.client,
            "label": self.label,
            "labelled": self.labelled,
            "classes": list(self.classes),
            "target": self.target._asdict(),
            "rows": self.rows,
            "missing": list(self.missing),
            "class_counts": list(self.class_counts),
            "shape": list(self.shape),
            "features": list(self.features),
            "encoders": encoders,
        }

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features of a table, in their order; arrays have none."""
        return tuple(feature for encoder in self.encoders for feature in encoder.names)

    @property
    def columns(self) -> list[str]:
        """The columns that features are made of."""
        return list(dict.fromkeys(encoder.column for encoder in self.encoders))

    @property
    def text_columns(self) -> list[str]:
        """Those of them that are categories."""
        return [each.column for each in self.encoders if isinstance(each, OneHot)]

    def read(self, source: Any, *, wanted: tuple[str, ...] = ()) -> Any:
        """New rows as an Arrow table that has all columns of features, and those `wanted`.

        They come in any order, and others may stand among them. Where one is not there, a sentence
        names it.
        """
        table = read_table(
            source,
            client=self.client,
            wanted=[*self.columns, *wanted],
            welcome=[self.client, self.label],
            only=True,
            text=self.text_columns,
        )
        return blank_missing(table, self.missing, self.columns)

    def encode(self, source: Any) -> Tensor:
        """The features [n, d] of new rows: a file, a frame, an Arrow table; arrays where they are.

        A category that training did not have goes with the rare ones, or is all zeros where there
        were none. A missing number becomes the mean of training, a missing category is all zeros
        if training had none.
        """
        if self.encoders:
            table = self.read(source)
            rows = np.arange(table.num_rows)
            return torch.from_numpy(encode_rows(table, self.encoders, rows))
        x = as_tensor(source)
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(
                f"samples must have the shape {list(self.shape)}, as in training, got "
                f"{list(x.shape[1:])}"
            )
        return x.float() if x.dtype == torch.float64 else x

    def decode(self, values: Any) -> NDArray[Any]:
        """What a model's values mean: names of classes [n], or targets [n] in the label's units."""
        found = np.asarray(values)
        if self.classes:
            names: NDArray[Any] = np.array(self.classes, dtype=object)[found]
            return names
        return self.target.scale_back(found)

    def labels(self, column: Column | None, rows: Rows, count: int, name: str) -> Labels:
        """The labels of a column with `count` rows, numbered and scaled as everywhere."""
        if not self.labelled:
            return absent_labels(count)
        if column is None:
            raise DataError(f"{name} does not fit the app: it has no label")
        check_label(column)
        return as_known_classes(column, self.classes, rows, self.target)

    def stub(self, shape: Any, kind: torch.dtype) -> Federation:
        """One client with samples of no meaning, for what only shapes decide."""
        x = torch.zeros(2, *shape, dtype=kind)
        y = torch.tensor([0, len(self.classes) - 1]) if self.classes else torch.tensor([0.0, 1.0])
        samples = Samples(x, y, torch.tensor([0, 2]))
        return Federation(samples, labelled=self.labelled, schema=self)


def read_schema(path: Path) -> Schema:
    """The schema in a file, as a run leaves it in its folder."""
    try:
        return Schema.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
