"""A table with what is predicted for its rows: the columns as they came, and others behind them."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from coterie.core.errors import DataError, SettingError
from coterie.data.tables.read import (
    TABLES,
    existing_path,
    file_kind,
    has_decimal_commas,
    import_arrow,
    read_table,
)
from coterie.files import write_atomically
from coterie.prediction.predictor import Predictions, Predictor

TEXTS = (".csv", ".csv.gz", ".tsv")  # kinds that are written as delimited text
MARKS = ",;\t|"


def predict_table(
    predictor: Predictor, source: Path, out: Path | None, client: str | None, stdout: TextIO
) -> Predictions:
    """Predict the rows of a file or folder and write all to `out`, or to `stdout` as text.

    A CSV file keeps its text as it is, with its delimiter and decimal commas.
    """
    if predictor.schema is None or not predictor.schema.encoders:
        name = predictor.kept.facts["federation"]
        raise SettingError(
            f"the run was trained on {name}, whose samples are no rows of a table: predict in "
            "Python, as in coterie.load_run(folder).predict(x, client=...)"
        )
    path = existing_path(source)
    kind = file_kind(out or path) if out or path.is_file() else ".csv"
    check_target(path, out, kind)
    found = predictor.predictions(path, client)
    added = prediction_columns(predictor, found)
    verbatim = read_text(path) if kind in TEXTS and path.is_file() else None
    if verbatim is not None and len(verbatim.rows) == len(found.values):
        check_new_names(verbatim.header, added)
        text = delimited_text(verbatim.header, verbatim.rows, added, verbatim)
    else:
        schema = predictor.schema
        table = read_table(path, client=schema.client, wanted=[], text=schema.text_columns)
        check_new_names(table.column_names, added)
        if kind not in TEXTS:
            assert out is not None, "binary tables go to files"
            write_arrow(table, added, kind, out)
            return found
        columns = [table.column(name).to_pylist() for name in table.column_names]
        rows = [["" if v is None else str(v) for v in row] for row in zip(*columns, strict=True)]
        form = TextForm([], [], "\t" if kind == ".tsv" else ",", False)
        text = delimited_text(table.column_names, rows, added, form)
    if out is None:
        stdout.write(text)
    else:
        whole = gzip.compress(text.encode()) if kind == ".csv.gz" else text.encode()
        write_atomically(out, lambda unfinished: unfinished.write_bytes(whole))
    return found


def check_target(path: Path, out: Path | None, kind: str) -> None:
    """Refuse a place to write to before anything is computed."""
    if kind not in TABLES:
        name = (out or path).name
        raise DataError(f"{name} must end in one of {', '.join(TABLES)}")
    if out is None and kind not in TEXTS:
        raise SettingError(
            f"{path.name} is no text, so that predictions go to a file: say --out predicted{kind}"
        )
    if out is not None and out.exists() and out.samefile(path):
        raise SettingError(f"--out must not be the table itself, got {out}")
    if out is not None and not out.absolute().parent.is_dir():
        raise SettingError(f"--out must be in a folder that is there, got {out}")


def prediction_columns(predictor: Predictor, found: Predictions) -> dict[str, Any]:
    """The columns behind those of the table, by name."""
    columns: dict[str, Any] = {}
    if predictor.samples is None:
        columns["prediction"] = found.values
    if found.probabilities is not None:
        for j, name in enumerate(predictor.classes):
            columns[f"probability_{name}"] = found.probabilities[:, j]
    columns["group"] = found.group
    columns["group_by"] = found.chosen
    return columns


def check_new_names(names: list[str], added: dict[str, Any]) -> None:
    """Refuse a table that has a column of the name of one that is added."""
    for name in added:
        if name in names:
            raise DataError(
                f"the table has a column `{name}` already, as predictions have: rename or drop it"
            )


class TextForm:
    """Delimited text as it is in a file: header, rows, delimiter, whether decimals have commas."""

    def __init__(
        self, header: list[str], rows: list[list[str]], delimiter: str, commas: bool
    ) -> None:
        self.header, self.rows, self.delimiter, self.commas = header, rows, delimiter, commas


def read_text(path: Path) -> TextForm | None:
    """The fields of a file of delimited text; None of another file."""
    if file_kind(path) not in TEXTS:
        return None
    raw = path.read_bytes()
    whole = gzip.decompress(raw) if file_kind(path) == ".csv.gz" else raw
    head = whole.split(b"\n", 1)[0]
    delimiter = max(MARKS, key=lambda mark: head.count(mark.encode()))
    lines = csv.reader(io.StringIO(whole.decode("utf-8-sig"), newline=""), delimiter=delimiter)
    header, *rows = [line for line in lines if line]
    return TextForm(header, rows, delimiter, delimiter != "," and has_decimal_commas(whole))


def delimited_text(
    header: list[str], rows: list[list[str]], added: dict[str, Any], form: TextForm
) -> str:
    """The rows with what was added to each."""
    texts = [field_texts(values, form.commas) for values in added.values()]
    place = list(added).index("group")
    texts[place] = ["" if text == "-1" else text for text in texts[place]]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=form.delimiter, lineterminator="\n")
    writer.writerow([*header, *added])
    writer.writerows([*row, *new] for row, new in zip(rows, zip(*texts, strict=True), strict=True))
    return out.getvalue()


def field_texts(values: Any, commas: bool) -> list[str]:
    """Values as text: numbers so that reading gives them again, no group as nothing."""
    if values.dtype.kind == "f":
        return [str(value).replace(".", ",") if commas else str(value) for value in values]
    if values.dtype.kind == "b":
        return [str(value).lower() for value in values]
    return list(map(str, values))


def write_arrow(table: Any, added: dict[str, Any], kind: str, out: Path) -> None:
    """Write a Parquet, Feather or Arrow file."""
    pyarrow = import_arrow()
    for name, values in added.items():
        column = pyarrow.array(values, mask=values < 0 if name == "group" else None)
        table = table.append_column(name, column)
    if kind == ".parquet":
        parquet = import_arrow("pyarrow.parquet")
        write_atomically(out, lambda unfinished: parquet.write_table(table, str(unfinished)))
    else:
        feather = import_arrow("pyarrow.feather")
        write_atomically(out, lambda unfinished: feather.write_feather(table, str(unfinished)))


def prediction_counts(found: Predictions) -> str:
    """How many rows were predicted, and by what."""
    counts = Counter(found.chosen.tolist())
    parts = ", ".join(f"{count:,} by {how}" for how, count in counts.items())
    return f"{len(found.values):,} rows predicted: {parts}"
