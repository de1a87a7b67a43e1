"""FEMNIST in its three layouts."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.core.errors import DataError
from coterie.data.sources import femnist, load_femnist

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
REAL = femnist.SOURCE.where()


def arrays():
    return {
        "x": IMAGES,
        "y": np.array([0, 61, 2, 3, 4, 5], np.uint8),
        "writer": np.array([0, 0, 1, 2, 2, 0], np.int16),
        "split": np.array([1, 0, 0, 0, 1, 0], np.uint8),
        "writer_name": np.array(["ann", "bob", "cid"]),
        "writer_pipeline": np.array([0, 1, 0], np.uint8),
    }


def write_npz(folder, **changes):
    (folder / "femnist").mkdir(parents=True)
    values = {k: v for k, v in (arrays() | changes).items() if v is not None}
    np.savez_compressed(folder / "femnist" / "some.npz", **values)


def leaf(users):
    """A file of LEAF, from the rows of IMAGES that each user has."""
    return {
        "users": list(users),
        "num_samples": [len(rows) for rows in users.values()],
        "user_data": {
            user: {"x": (IMAGES[rows].reshape(-1, 784) / 255).tolist(), "y": list(rows)}
            for user, rows in users.items()
        },
    }


def write_leaf(folder, train, test, inside="data"):
    for split, values in (("train", train), ("test", test)):
        place = folder / "femnist" / inside / split
        place.mkdir(parents=True)
        (place / f"all_data_0_niid_{split}_9.json").write_text(
            values if isinstance(values, str) else json.dumps(values)
        )


def png(array, mode="L"):
    file = io.BytesIO()
    Image.fromarray(array).convert(mode).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder, **changes):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in IMAGES],
        "writer_id": ["f2", "f1", "f2", "f1", "f1", "f3"],
        "hsf_id": [0, 1, 0, 1, 1, 4],
        "character": [0, 61, 2, 3, 4, 5],
    } | changes
    (folder / "femnist" / "data").mkdir(parents=True)
    table = pyarrow.table({k: v for k, v in columns.items() if v is not None})
    parquet.write_table(table, folder / "femnist" / "data" / "train-00000-of-00001.parquet")


def test_the_npz_keeps_the_writers_of_one_pipeline(folder):
    write_npz(folder)
    data = load_femnist()
    assert data.writers == ("ann", "cid")
    assert data.writer.tolist() == [0, 0, 0, 1, 1]
    assert data.split.tolist() == [0, 0, 1, 0, 1]
    assert data.labels.tolist() == [61, 5, 0, 3, 4]
    assert data.images.numpy().tolist() == IMAGES[[1, 5, 0, 3, 4]].tolist()
    assert data.images.dtype == torch.uint8
    assert load_femnist(resampled=True).writers == ("ann", "bob", "cid")


def test_an_npz_without_split_has_none(folder):
    write_npz(folder, split=None)
    assert load_femnist().split is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y": None}, "must have an array named y"),
        ({"y": np.array([0, 62, 2, 3, 4, 5])}, "labels of .* must lie in 0 to 61"),
        ({"y": np.array([0, 1])}, "differ in length"),
        ({"x": IMAGES / 255}, r"must be bytes \[n, 28, 28\], got float64"),
        ({"x": IMAGES.reshape(6, 784)}, r"must be bytes \[n, 28, 28\]"),
        ({"writer": np.array([0, 0, 1, 2, 3, 0])}, "`writer` of .* must lie in 0 to 2"),
        ({"split": np.array([0, 0, 0, 0, 0, 2])}, "`split` of .* must be 0 or 1"),
        ({"writer_pipeline": np.array([0])}, "differ in length"),
        ({"writer_name": np.array(["a", None, "c"], object)}, "cannot be read: Object arrays"),
    ],
)
def test_a_wrong_npz_is_refused(folder, changes, sentence):
    write_npz(folder, **changes)
    with pytest.raises(DataError, match=sentence):
        load_femnist()


@pytest.mark.parametrize("spoil", [lambda d: d[:-50], lambda d: b"<html>", lambda d: b""])
def test_a_broken_npz_is_refused(folder, spoil):
    write_npz(folder)
    path = folder / "femnist" / "some.npz"
    path.write_bytes(spoil(path.read_bytes()))
    for read in (load_femnist, lambda: femnist.SOURCE.get(print)):
        with pytest.raises(DataError, match=r"some.npz cannot be read: (?!.*pickle)"):
            read()


@pytest.mark.parametrize("inside", ["data", "."])
def test_leaf_files_give_back_the_bytes_and_the_split(folder, inside):
    write_leaf(folder, leaf({"w1": [0, 1], "w2": [2]}), leaf({"w2": [3, 4], "w1": [5]}), inside)
    data = load_femnist()
    assert data.writers == ("w1", "w2")
    assert data.labels.tolist() == [0, 1, 5, 2, 3, 4]
    assert data.writer.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.split.tolist() == [0, 0, 1, 0, 1, 1]
    assert data.images.numpy().tolist() == IMAGES[[0, 1, 5, 2, 3, 4]].tolist()


def spoilt(**changes):
    values = leaf({"w1": [0, 1]})
    values["user_data"]["w1"] |= {k: v for k, v in changes.items() if k in "xy"}
    return values | {k: v for k, v in changes.items() if k not in "xy"}


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (json.dumps(leaf({"w1": [0]}))[:-9], "is not a JSON file of LEAF"),
        ("[1]", "is not a JSON file of LEAF"),
        ("[" * 100_000, "is not a JSON file of LEAF"),
        ('{"users": ["w1"]}', "is not a JSON file of LEAF .* KeyError"),
        (spoilt(num_samples=[3]), "w1 in .* must have 3 images of 784 numbers"),
        (spoilt(num_samples=[2, 2]), "is not a JSON file of LEAF"),
        (spoilt(y=[0]), r"as many labels, got \[2, 784\] and 1"),
        (spoilt(y=[0, 62]), "labels of .* must lie in 0 to 61"),
        (spoilt(y=[0, 1.5]), "labels of .* must lie in 0 to 61"),
        (spoilt(x=[[0.0] * 783] * 2), r"got \[2, 783\]"),
        (spoilt(x=[[0.0] * 784, [0.0] * 9]), "is not a JSON file of LEAF"),
        (spoilt(x=[[255.0] * 784] * 2), "the pixels of w1 in .* must lie in 0 to 1"),
        (spoilt(x=[[float("nan")] * 784] * 2), "the pixels of w1 in .* must lie in 0 to 1"),
    ],
)
def test_a_wrong_leaf_file_is_refused(folder, train, sentence):
    write_leaf(folder, train, leaf({"w1": [2]}))
    with pytest.raises(DataError, match=sentence):
        load_femnist()


def test_leaf_files_without_images_are_refused(folder):
    empty = {"users": [], "num_samples": [], "user_data": {}}
    write_leaf(folder, empty, empty)
    with pytest.raises(DataError, match="there is no image in the files"):
        load_femnist()


def test_parquet_files_have_writers_and_no_split(folder):
    write_parquet(folder)
    data = load_femnist()
    assert data.writers == ("f2", "f1", "f3")
    assert data.writer.tolist() == [0, 0, 1, 1, 1, 2]
    assert data.labels.tolist() == [0, 2, 61, 3, 4, 5]
    assert data.split is None
    assert data.images.numpy().tolist() == IMAGES[[0, 2, 1, 3, 4, 5]].tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"character": None}, "must have a column character"),
        ({"character": [0, 1, 2, 3, 4, 62]}, "must lie in 0 to 61"),
        ({"writer_id": ["f2", None, "f2", "f1", "f1", "f3"]}, "must have a writer_id"),
        ({"image": [{"bytes": b"<html>"}] * 6}, "an image in .* cannot be read"),
        ({"image": [{"bytes": png(IMAGES[0])[:-60]}] * 6}, "an image in .* cannot be read"),
        ({"image": [{"bytes": None}] * 6}, "an image in .* cannot be read"),
        (
            {"image": [{"bytes": png(np.zeros((8, 9), np.uint8))}] * 6},
            r"must be 28 x 28, got \(9, 8\)",
        ),
    ],
)
def test_a_wrong_table_is_refused(folder, changes, sentence):
    write_parquet(folder, **changes)
    with pytest.raises(DataError, match=sentence):
        load_femnist()


@pytest.mark.parametrize("spoil", [lambda d: d[:-50], lambda d: b"<html>", lambda d: b""])
def test_a_broken_table_is_refused(folder, spoil):
    write_parquet(folder)
    path = folder / "femnist" / "data" / "train-00000-of-00001.parquet"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=r"parquet cannot be read"):
        load_femnist()


def test_without_files_the_sentence_says_which_to_place_where(folder):
    sentence = "femnist is not in .*; place there the train-.*parquet files of huggingface"
    with pytest.raises(DataError, match=sentence):
        load_femnist()
    with pytest.raises(DataError, match=sentence):
        femnist.SOURCE.get(print)


@pytest.mark.skipif(
    REAL is None or not (REAL / "femnist_leaf_300writers.npz").is_file(),
    reason="femnist/femnist_leaf_300writers.npz is in no data folder: set COTERIE_DATA",
)
def test_the_real_sample_has_212_writers_and_32582_images():
    data = load_femnist()
    assert (len(data.writers), len(data.images)) == (212, 32_582)
    assert data.writer.unique().numel() == 212
    assert data.labels.unique().numel() == 62
    assert torch.bincount(data.split).tolist() == [29_224, 3_358]
    assert len(load_femnist(resampled=True).images) == 46_190
