import datetime
import gzip

import numpy as np
import pytest
import torch

from coterie.core.errors import DataError, SettingError
from coterie.data.federation import Federation
from coterie.data.tables.table import Table


def written(pyarrow, rows, path, kind):
    """The table in a file of some kind."""
    from pyarrow import csv, feather, parquet

    table = pyarrow.table(rows)
    if kind in ("csv", "tsv", "semicolons"):
        options = {"csv": ",", "tsv": "\t", "semicolons": ";"}
        file = path / ("rows.tsv" if kind == "tsv" else "rows.csv")
        csv.write_csv(table, file, csv.WriteOptions(delimiter=options[kind]))
    elif kind == "csv.gz":
        csv.write_csv(table, path / "rows.csv")
        file = path / "rows.csv.gz"
        file.write_bytes(gzip.compress((path / "rows.csv").read_bytes()))
    elif kind == "parquet":
        file = path / "rows.parquet"
        parquet.write_table(table, file)
    elif kind == "dictionary":
        file = path / "rows.parquet"
        for name in ("client", "city", "label"):
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(name).dictionary_encode())
        parquet.write_table(table, file)
    elif kind == "feather":
        file = path / "rows.feather"
        feather.write_feather(table, file)
    else:
        file = path / "rows.arrow"
        with pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return file


KINDS = ["csv", "tsv", "semicolons", "csv.gz", "parquet", "dictionary", "feather", "stream"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_federation(pyarrow, rows, tmp_path, kind):
    expected = Table().prepare(pyarrow.table(rows), 0)
    got = Table().prepare(str(written(pyarrow, rows, tmp_path, kind)), 0)
    assert torch.equal(got.train.x, expected.train.x)
    assert torch.equal(got.test.y, expected.test.y)
    assert (got.clients, got.features, got.classes) == (
        expected.clients,
        expected.features,
        expected.classes,
    )
    assert got.name.startswith("rows.")


def test_a_data_frame_is_taken_as_it_is(pyarrow, rows):
    pandas = pytest.importorskip("pandas", reason="pandas is missing")
    frame = pandas.DataFrame(rows)
    frame["city"] = frame["city"].astype("category")
    assert torch.equal(
        Federation.from_table(frame).train.x, Federation.from_table(pyarrow.table(rows)).train.x
    )


@pytest.mark.filterwarnings("default")  # its own imports warn
def test_a_hugging_face_dataset_is_taken_with_its_selection(pyarrow, rows):
    datasets = pytest.importorskip("datasets", reason="datasets is missing")
    whole = datasets.Dataset.from_dict(rows)
    got = Federation.from_table(whole.select([5, 4, 3, 2, 1, 0]))
    assert torch.equal(got.train.x, Federation.from_table(rows).train.x)
    with pytest.raises(DataError, match="one split of a dataset, got all of them: train, test"):
        Federation.from_table(datasets.DatasetDict({"train": whole, "test": whole}))


def test_csv_may_have_a_mark_quotes_commas_line_ends_and_any_letters(pyarrow, tmp_path):
    text = (
        "client,city,label\r\n"
        '"Zürich, Süd","a\n""b""",1\r\n"Zürich, Süd","a\n""b""",1\r\n'
        '"Zürich, Süd","a\n""b""",1\r\n東京,,0\r\n東京,,0\r\n'
    )
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    got = Table(path=str(tmp_path / "rows.csv")).prepare(str(tmp_path / "rows.csv"), 0)
    assert got.clients == ("Zürich, Süd", "東京")
    assert got.features == ('city=a\n"b"', "city=(missing)")
    assert got.train.x.tolist() == [[1, 0], [1, 0], [0, 1]]


def test_csv_types_may_show_late_in_the_file(pyarrow, tmp_path):
    lines = ["client,x,label", *(f"{i % 2},{i},{i % 3}" for i in range(200_000)), "0,0.5,1"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    got = Federation.from_table(tmp_path / "rows.csv", standardise=False)
    values = torch.cat([got.train.x, got.test.x])
    assert 0.5 in values
    assert len(values) == 200_001


def test_line_ends_in_quotes_may_lie_anywhere_in_a_long_file(pyarrow, tmp_path):
    text = "x\ny" * 100
    lines = [f'{i % 2},"{text}",{i},{i % 3}' for i in range(10_000)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,text,x,label", *lines]))
    got = Federation.from_table(tmp_path / "rows.csv", features="x", standardise=False)
    assert sorted(torch.cat([got.train.x, got.test.x])[:, 0].tolist()) == list(range(10_000))


def test_clients_in_csv_keep_their_leading_zeros_and_numbers_count_up(pyarrow, tmp_path):
    lines = [f"{name},{x},{x % 2}" for name in ("10", "7", "007") for x in range(3)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,x,label", *lines]))
    assert Table().prepare(tmp_path / "rows.csv", 0).clients == ("007", "7", "10")


def test_of_a_wide_parquet_file_only_named_columns_are_read(pyarrow, tmp_path):
    from pyarrow import parquet

    rows = {"who": [1, 1, 2, 2], "y": [0, 1, 0, 1], "x": [1, 2, 3, 4], "odd": [[1], [2], [3], [4]]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "wide.parquet")
    settings = Table(client="who", label="y", features="x")
    assert settings.prepare(tmp_path / "wide.parquet", 0).features == ("x",)
    with pytest.raises(DataError, match=r"column `odd` is of type list<.*> *, of which no feature"):
        Federation.from_table(tmp_path / "wide.parquet", client="who", label="y")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_folder_has_a_file_for_each_client(pyarrow, rows, tmp_path, kind):
    table = pyarrow.table(rows)
    for name in "abc":
        mine = table.filter(pyarrow.compute.field("client") == name).drop_columns(["client"])
        file = written(pyarrow, mine, tmp_path, kind)
        file.rename(tmp_path / f"{name}.{kind}")
    (tmp_path / "README.md").write_text("not a client")
    got = Table().prepare(str(tmp_path), 0)
    assert got.clients == ("a", "b", "c")
    assert torch.equal(got.train.x, Federation.from_table(table).train.x)


def test_the_files_of_a_folder_have_the_same_columns(pyarrow, tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("x,z,label\n1,2,0\n2,3,1\n")
    with pytest.raises(DataError, match=r"the same columns: `z` is not in both a.csv and b.csv"):
        Federation.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("x,label\nred,0\nblue,1\n")
    with pytest.raises(DataError, match="columns of the same types"):
        Federation.from_folder(tmp_path)
    (tmp_path / "c.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"must be of one kind, got .csv and .npz"):
        Federation.from_folder(tmp_path)


def test_whole_and_real_numbers_of_two_files_go_together(pyarrow, tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n3,0\n")
    (tmp_path / "b.csv").write_text("x,label\n1.5,0\n,1\n2.5,0\n")
    got = Federation.from_folder(tmp_path, standardise=False)
    assert {1.0, 2.0, 3.0, 1.5, 2.5} <= set(torch.cat([got.train.x, got.test.x])[:, 0].tolist())


@pytest.mark.parametrize(
    ("name", "contents", "error", "sentence"),
    [
        ("row.csv", None, DataError, r"no file or folder is at .*row.csv; did you mean `rows.csv`"),
        ("rows.xlsx", b"PK", DataError, r"rows.xlsx must end in one of .csv, "),
        ("rows.parquet", b"not parquet", DataError, r"rows.parquet cannot be read: .*Parquet"),
        ("rows.feather", b"not feather at all", DataError, "rows.feather cannot be read: "),
        ("rows.csv", b"", DataError, "rows.csv has no rows"),
        ("rows.csv", b"client,x,label\n", DataError, "rows.csv has no rows"),
        ("rows.csv", b"client,x,label\n1,2\n", DataError, "cannot be read: .*Expected 3 columns"),
        ("rows.csv", b"client,x,x,label\n1,2,3,4\n", DataError, "different names, got `x` twice"),
        (
            "rows.csv",
            b"clent,x,label\n1,2,3\n",
            SettingError,
            "rows.csv has no column named `client`; did you mean `clent`",
        ),
        ("rows.csv", b"a,b\n1,2\n", SettingError, r"no column named `client` \(columns: a, b\)"),
        (
            "rows.csv",
            b"client,x,label\n" + b"1,\xff,1\n" * 2 + b"2,\xfe,0\n" * 2,
            DataError,
            "rows.csv must be text in UTF-8, but `x` has other bytes: save it as UTF-8",
        ),
        ("rows.csv", b"client,x,label\n\xff,1,1\n", DataError, "UTF-8, but `client` has other"),
        ("rows.csv", b"client,x\xff,label\n1,1,1\n", DataError, "UTF-8, but the header has other"),
        (
            "rows.csv",
            "client,x,label\n1,1,1\n".encode("utf-16"),
            DataError,
            "rows.csv must be text in UTF-8, got UTF-16",
        ),
        ("rows.csv", b"client,x,label", DataError, "rows.csv has no rows"),
        ("rows.csv", b"1,2,2\n3,4,4\n", SettingError, "no column named `client` .columns: 1, 2, 2"),
        ("rows.arrow", b"hello", DataError, "cannot be read: it is no Feather or Arrow file, or"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_a_sentence(
    pyarrow, tmp_path, name, contents, error, sentence
):
    path = tmp_path / name
    (path if contents is not None else tmp_path / "rows.csv").write_bytes(contents or b"")
    with pytest.raises(error, match=sentence):
        Federation.from_table(path)


def test_numbers_may_have_decimal_commas_where_fields_do_not_end_with_them(pyarrow, tmp_path):
    lines = [f"{name};{x};{name}" for name in "ab" for x in ("1,5", "2", "-3,25", "2,75")]
    (tmp_path / "rows.csv").write_text("\n".join(["client;x;label", *lines]))
    federation = Federation.from_table(tmp_path / "rows.csv", standardise=False)
    assert set(torch.cat([federation.train.x, federation.test.x]).flatten().tolist()) == {
        1.5,
        2.0,
        -3.25,
        2.75,
    }


def test_hidden_files_are_no_clients(pyarrow, rows, tmp_path):
    for name in ("a", "b", "._a"):
        (tmp_path / f"{name}.csv").write_text("x,label\n1,0\n2,1\n3,1\n")
    assert Federation.from_folder(tmp_path).clients == ("a", "b")


def test_a_file_without_rows_is_told(pyarrow, tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("x,label\n")
    with pytest.raises(DataError, match=r"^b.csv has no rows$"):
        Federation.from_folder(tmp_path)


def test_a_missing_path_is_a_wrong_setting():
    with pytest.raises(SettingError, match="`path` of Table must name a file or a folder, got no"):
        Table().build(0)


def test_what_is_no_table_is_refused(pyarrow):
    with pytest.raises(DataError, match=r"a table must be a path, a data frame, .* got list"):
        Federation.from_table([1, 2, 3])


def test_mixed_columns_of_a_frame_are_refused(pyarrow):
    pandas = pytest.importorskip("pandas", reason="pandas is missing")
    frame = pandas.DataFrame({"client": [1, 2], "x": ["a", 1], "label": [0, 1]})
    with pytest.raises(DataError, match="a column of mixed types: "):
        Federation.from_table(frame)


def test_dates_and_times_are_days(pyarrow):
    day = datetime.date(1970, 1, 11)
    rows = {
        "client": [1, 1, 2, 2],
        "label": [0, 0, 1, 1],
        "date": [day, day, None, None],
        "far": pyarrow.array([86_400_000] * 2 + [0] * 2, pyarrow.date64()),
        "time": pyarrow.array([43_200_000_000] * 2 + [0] * 2, pyarrow.timestamp("us", "UTC")),
        "noon": pyarrow.array([43_200] * 2 + [0] * 2, pyarrow.time32("s")),
        "span": pyarrow.array([172_800] * 2 + [0] * 2, pyarrow.duration("s")),
    }
    got = Table(standardise=False).prepare(rows, 0)
    # All dates that are known are the same: what tells is whether one is.
    assert got.features == ("date=(missing)", "far", "time", "noon", "span")
    assert got.train.x.tolist() == [[0, 1, 0.5, 0.5, 2], [1, 0, 0, 0, 0]]


def test_numbers_of_every_width_are_features(pyarrow):
    import decimal

    values = [1, 1, 3, 3]
    rows = {"client": [1, 1, 2, 2], "label": [0, 0, 1, 1]}
    kinds = ["int8", "uint64", "float16", "float32", "float64"]
    rows |= {kind: pyarrow.array(np.array(values, kind)) for kind in kinds}
    rows["decimal"] = [decimal.Decimal(value) for value in values]
    got = Federation.from_table(rows, standardise=False)
    assert got.train.x.tolist() == [[1] * 6, [3] * 6]
    assert got.train.x.dtype == torch.float32
