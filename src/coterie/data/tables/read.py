"""Tables from files, folders and memory, all as Arrow tables.

pyarrow is imported only here and only when a table is read.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import DataError, SettingError, did_you_mean

TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".feather", ".arrow")  # kinds of files we read
DELIMITERS = ",;\t|"
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how such text begins


def import_arrow(module: str = "pyarrow") -> Any:
    """pyarrow, or one of its modules."""
    return importlib.import_module(module)


def read_table(
    source: Any,
    *,
    client: str,
    wanted: Iterable[str],
    welcome: Iterable[str] = (),
    only: bool = False,
    text: Iterable[str] = (),
) -> Any:
    """A `pyarrow.Table` of a file, a folder or an object, with at least the columns `wanted`.

    A folder has one file for each client; its table gets the file names as the column `client`.
    With `only`, other columns than these and those that are `welcome` need not be read; they are
    where files cannot be read in part. The columns `text` of CSV files are read as text.
    """
    columns = list(wanted)
    if isinstance(source, str | Path):
        path = existing_path(source)
        part = (columns, list(welcome)) if only else ([], [])
        spelt = [client, *text]
        table = read_folder(path, client, spelt) if path.is_dir() else read_file(path, spelt, *part)
    else:
        table = table_from_object(source)
    name = source_name(source)
    check_columns(table.column_names, columns, name)
    twice = [column for column, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise DataError(f"the columns of {name} must have different names, got `{twice[0]}` twice")
    if table.num_rows == 0:
        raise DataError(f"{name} has no rows")
    return table


def source_name(source: Any, nameless: str = "the table") -> str:
    """What a source is called: its file name, if it has one."""
    return Path(source).name if isinstance(source, str | Path) else nameless


def existing_path(source: str | Path) -> Path:
    """The path of a file or folder that is there."""
    try:
        path = Path(source).expanduser()
    except RuntimeError as error:
        raise DataError(f"{source} cannot be found: {error}") from error
    if not str(source):
        raise SettingError("`path` of Table must name a file or a folder, got nothing")
    if not path.exists():
        near = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"no file or folder is at {path}{did_you_mean(path.name, near)}")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} must be a plain file or a folder")
    return path


def file_kind(path: Path) -> str:
    """The ending of a file that says how to read it; `.gz` goes with what stands before it."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def check_columns(known: list[str], wanted: Iterable[str], name: str) -> None:
    """Refuse a column that is not there; name the near ones."""
    for column in wanted:
        if column not in known:
            shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            near = did_you_mean(column, known) or f" (columns: {shown})"
            raise SettingError(f"{name} has no column named `{column}`{near}")


def read_file(path: Path, text: list[str], columns: list[str], welcome: list[str]) -> Any:
    """The table in one file; its ending says how it is written. No `columns`: all of them."""
    kind, pyarrow = file_kind(path), import_arrow()
    try:
        if kind in (".csv", ".csv.gz", ".tsv"):
            return read_csv(path, text)
        if kind == ".parquet":
            return read_parquet(path, columns, welcome)
        if kind in (".feather", ".arrow"):
            return read_arrow(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}") from error
    raise DataError(f"{path.name} must end in one of {', '.join(TABLES)}, or be a folder")


def read_csv(path: Path, text: list[str]) -> Any:
    """A table of delimited text in UTF-8, with or without a byte order mark.

    The delimiter is that of `, ; tab |` which the first line has most of. Where it is no comma,
    numbers may have a decimal comma. Empty fields and words such as NA and NaN are missing values.
    The columns `text`, the clients among them, are read as such, so that 007 is not 7.
    """
    pyarrow, csv = import_arrow(), import_arrow("pyarrow.csv")
    with pyarrow.input_stream(str(path)) as stream:
        opening = bytes(stream.read(1 << 20))
    if opening.startswith(UTF16):
        raise DataError(f"{path.name} must be text in UTF-8, got UTF-16: save it as UTF-8")
    header = opening.split(b"\n", 1)[0]
    if not header.strip():
        raise DataError(f"{path.name} has no rows")
    delimiter = max(DELIMITERS, key=lambda mark: header.count(mark.encode()))
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    typing = csv.ConvertOptions(
        strings_can_be_null=True,
        column_types=dict.fromkeys(text, pyarrow.string()),
        decimal_point="," if delimiter != "," and has_decimal_commas(opening) else ".",
    )
    try:
        table = csv.read_csv(str(path), parse_options=parsing, convert_options=typing)
        kinds = zip(table.column_names, table.schema.types, strict=True)
        foreign = [f"`{name}`" for name, kind in kinds if pyarrow.types.is_binary(kind)]
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        if "Empty CSV" in str(error):  # a header without an end of line
            raise DataError(f"{path.name} has no rows") from error
        if "UTF8" not in str(error) and not isinstance(error, UnicodeDecodeError):
            raise
        foreign = [f"`{text[0]}`" if "UTF8" in str(error) else "the header"]
    if foreign:
        raise DataError(
            f"{path.name} must be text in UTF-8, but {foreign[0]} has other bytes: save it as UTF-8"
        )
    return table


def has_decimal_commas(text: bytes) -> bool:
    """Whether fields of delimited text hold numbers such as 1,5, and none holds one such as 1.5.

    >>> has_decimal_commas(b"a;1,5;x"), has_decimal_commas(b"a;1,5;2.5"), has_decimal_commas(b"1,5")
    (True, False, False)
    """
    field = rb"[;\t|]-?\d+%s\d+(?=[;\t|\r\n]|$)"
    return bool(re.search(field % b",", text)) and not re.search(field % rb"\.", text)


def read_parquet(path: Path, columns: list[str], welcome: list[str]) -> Any:
    """A Parquet table; of a wide one only `columns`, if any are named. Text comes as codes.

    Of those that are `welcome`, it has those that are there.
    """
    pyarrow, parquet = import_arrow(), import_arrow("pyarrow.parquet")
    schema = parquet.read_schema(str(path))
    check_columns(schema.names, columns, path.name)
    part = columns and [*columns, *(name for name in welcome if name in schema.names)]
    text = [field.name for field in schema if pyarrow.types.is_string(field.type)]
    file = parquet.ParquetFile(str(path), read_dictionary=text)
    return file.read(columns=part or None)


def read_arrow(path: Path) -> Any:
    """A Feather file, or an Arrow file or stream."""
    pyarrow = import_arrow()
    try:
        return import_arrow("pyarrow.feather").read_table(str(path))
    except pyarrow.ArrowInvalid:
        try:
            with pyarrow.memory_map(str(path)) as file:
                return pyarrow.ipc.open_stream(file).read_all()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{path} cannot be read: it is no Feather or Arrow file, or a part is missing"
            ) from error


def client_files(folder: Path) -> list[Path]:
    """The files of a folder with one for each client, by name; they must be of one kind."""
    files = sorted(
        path
        for path in folder.iterdir()
        if file_kind(path) in (*TABLES, ".npz") and not path.name.startswith(".")
    )
    for path in files:
        existing_path(path)
    kinds = sorted({file_kind(path) for path in files})
    if not kinds:
        raise DataError(f"{folder} must hold a .npz, .csv or .parquet file for each client")
    if len(kinds) > 1:
        raise DataError(f"the files in {folder} must be of one kind, got {' and '.join(kinds)}")
    return files


def read_folder(folder: Path, client: str, text: list[str]) -> Any:
    """The tables of a folder under one another; the column `client` is the file's name.

    A column of that name in the files is replaced.
    """
    pyarrow = import_arrow()
    files = client_files(folder)
    tables = [read_file(path, text, [], []) for path in files]
    for path, table in zip(files, tables, strict=True):
        if table.num_rows == 0:
            raise DataError(f"{path.name} has no rows")
        if set(table.column_names) != set(tables[0].column_names):
            odd = sorted(set(table.column_names) ^ set(tables[0].column_names))
            raise DataError(
                f"the files in {folder} must have the same columns: `{odd[0]}` is not in both "
                f"{files[0].name} and {path.name}"
            )
    names = pyarrow.array([path.name[: -len(file_kind(path))] for path in files])
    sizes = [table.num_rows for table in tables]
    try:
        whole = pyarrow.concat_tables(
            [table.select(tables[0].column_names) for table in tables], promote_options="permissive"
        )
    except pyarrow.ArrowException as error:
        raise DataError(
            f"the files in {folder} must have columns of the same types: {first_line(error)}"
        ) from error
    index = pyarrow.array([i for i, size in enumerate(sizes) for _ in range(size)], "int32")
    owners = pyarrow.DictionaryArray.from_arrays(index, names)
    if client in whole.column_names:
        whole = whole.drop_columns([client])
    return whole.append_column(client, owners)


def append_rows(table: Any, rows: Any, name: str) -> Any:
    """A table with the rows of another one, with the same columns, under its own.

    What is text in one of them is text in both.
    """
    pyarrow = import_arrow()
    columns = []
    for column in table.column_names:
        pair = [plain_column(each.column(column)) for each in (table, rows)]
        if any(is_plain_text(each.type) for each in pair):
            pair = [each.cast("large_string") for each in pair]
        columns.append(pair)
    tables = [pyarrow.table(list(own), table.column_names) for own in zip(*columns, strict=True)]
    try:
        return pyarrow.concat_tables(tables, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{name} must have columns of the same types as the other rows: {first_line(error)}"
        ) from error


def plain_column(column: Any) -> Any:
    """A column whose values are not codes."""
    codes = import_arrow().types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if codes else column


def is_plain_text(kind: Any) -> bool:
    """Whether a column of this type holds text as it is."""
    types = import_arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def table_from_object(source: Any) -> Any:
    """A table of an object: Arrow, pandas, polars, Hugging Face `datasets`, or a dict of columns.

    All are known by what they can do; none of those libraries is imported.
    """
    pyarrow = import_arrow()
    if isinstance(source, pyarrow.Table):
        return source
    if isinstance(getattr(source, "column_names", None), dict):
        splits = ", ".join(source.column_names)
        raise DataError(f"a table must be one split of a dataset, got all of them: {splits}")
    try:
        if hasattr(source, "column_names") and hasattr(source, "with_format"):
            return source.with_format("arrow")[:]
        if hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "iloc"):
            return pyarrow.Table.from_pandas(source, preserve_index=False)
        if hasattr(source, "__arrow_c_stream__") or isinstance(source, Mapping):
            return pyarrow.table(source)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the table has a column of mixed types: {first_line(error)}") from error
    raise DataError(
        f"a table must be a path, a data frame, an Arrow table or a Hugging Face dataset, "
        f"got {type(source).__name__}"
    )


def first_line(error: BaseException) -> str:
    """What an error of another library says, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
