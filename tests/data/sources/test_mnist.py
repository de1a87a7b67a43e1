"""The IDX format, the sources that are made of it, and getting them from mirrors."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import DataError, SettingError
from coterie.data.sources import (
    load_fashion_mnist,
    load_mnist,
    load_mnist_writers,
    mirrors,
    mnist,
)
from coterie.data.sources.mnist import read_idx

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx(array):
    kind = {"uint8": 8, "int32": 12}[array.dtype.name]
    shape = np.array(array.shape, ">u4").tobytes()
    return (
        bytes([0, 0, kind, array.ndim])
        + shape
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def small(digests, monkeypatch):
    """Files in MNIST's format under its names, whose digests are taken for the published ones."""
    files = {}
    for name in digests:
        shape = (5, 28, 28) if "images" in name else (5,)
        top = 256 if "images" in name else 10
        files[name] = idx(np.random.default_rng(len(files)).integers(0, top, shape, np.uint8))
        monkeypatch.setitem(digests, name, hashlib.sha256(files[name]).hexdigest())
    return files


def source(shelf, *names):
    web = [mnist.web_files(f"{shelf.address}{name}/", mnist.MNIST) for name in names]
    return mnist.idx_source("mnist", "digits", mnist.MNIST, tuple(web))


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_idx_gives_back_what_was_written(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype) * 10
    again = read_idx(idx(array))
    assert again.dtype == array.dtype
    assert (again == array).all()


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (b"", "not an IDX file"),
        (b"\x1f\x8b\x08\x00", "not an IDX file"),
        (bytes([0, 0, 9, 1, 0, 0, 0, 0]), "not an IDX file"),
        (bytes([0, 0, 8, 3, 0, 0]), "an IDX file of 3 axes ends after 6 bytes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8]), r"an IDX file of shape \[3\] has 2 values"),
        (bytes([0, 0, 12, 1, 0, 0, 0, 1, 7, 8]), r"an IDX file of shape \[1\] has 0.5 values"),
    ],
)
def test_a_broken_idx_file_is_refused(contents, sentence):
    with pytest.raises(DataError, match=sentence):
        read_idx(contents)


@pytest.mark.parametrize(
    ("name", "load", "digests"),
    [("mnist", load_mnist, mnist.MNIST), ("fashion-mnist", load_fashion_mnist, mnist.FASHION)],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_images_are_bytes_and_labels_numbers(folder, monkeypatch, name, load, digests, compressed):
    files = small(digests, monkeypatch)
    (folder / name).mkdir(parents=True)
    for file, data in files.items():
        suffix, contents = (".gz", gzip.compress(data)) if compressed else ("", data)
        (folder / name / f"{file}{suffix}").write_bytes(contents)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = load(part)
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert images.numpy().tobytes() == files[f"{prefix}-images-idx3-ubyte"][16:]
        assert bytes(labels.tolist()) == files[f"{prefix}-labels-idx1-ubyte"][8:]


def test_a_truncated_gz_file_is_told_by_its_path(folder):
    (folder / "mnist").mkdir(parents=True)
    path = folder / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(os.urandom(1000))[:-20])
    with pytest.raises(
        DataError, match=r"ubyte.gz cannot be read.*; `coterie data get mnist` gets"
    ):
        load_mnist("test")


def test_a_foreign_file_is_not_used(folder):
    (folder / "mnist").mkdir(parents=True)
    (folder / "mnist" / "t10k-images-idx3-ubyte").write_bytes(b"<html>")
    with pytest.raises(DataError, match="is not the published file: its SHA-256 differs"):
        load_mnist("test")


def test_a_part_that_is_neither_is_refused():
    with pytest.raises(SettingError, match="must be one of train, test, got valid"):
        load_mnist("valid")


def test_writers_and_series_are_columns_of_the_extended_labels(folder, monkeypatch):
    rows = np.arange(80).reshape(10, 8).astype(np.int32)
    name = "qmnist-test-labels-idx2-int"
    monkeypatch.setitem(mnist.WRITERS, name, hashlib.sha256(idx(rows)).hexdigest())
    monkeypatch.setitem(mnist.ROWS, "test", 4)
    (folder / "mnist-writers").mkdir(parents=True)
    (folder / "mnist-writers" / f"{name}.gz").write_bytes(gzip.compress(idx(rows)))
    writer, series = load_mnist_writers("test")
    assert writer.tolist() == [2, 10, 18, 26]
    assert series.tolist() == [1, 9, 17, 25]


def test_mirrors_are_tried_in_turn_and_files_placed_when_they_are_right(folder, shelf, monkeypatch):
    files = small(mnist.MNIST, monkeypatch)
    names = list(files)
    shelf.files = {f"good/{name}.gz": gzip.compress(files[name]) for name in names}
    shelf.files[f"half/{names[0]}.gz"] = gzip.compress(files[names[0]], mtime=1)
    shelf.files[f"half/{names[1]}.gz"] = b"<html>"
    monkeypatch.setattr(mirrors, "RETRIES", 0)
    said = []
    place = source(shelf, "none", "half", "good").get(said.append)
    assert place == folder / "mnist"
    assert [line.rsplit("/", 2)[-2] for line in said if "trying" in line] == [
        "none",
        "half",
        "good",
    ]
    found = {path.name: gzip.decompress(path.read_bytes()) for path in place.iterdir()}
    assert found == {f"{name}.gz": data for name, data in files.items()}
    # What the second mirror had right was not fetched again.
    assert len(shelf.requests) == 1 + 2 + 3
    assert load_mnist("train")[0].shape == (5, 28, 28)


def test_all_failures_are_told_in_one_sentence(folder, shelf, monkeypatch):
    monkeypatch.setattr(mirrors, "TIMEOUT", 0.2)
    monkeypatch.setattr(mirrors, "RETRIES", 0)
    files = small(mnist.MNIST, monkeypatch)
    shelf.files = {f"wrong/{name}.gz": gzip.compress(b"other") for name in files}
    bad = source(shelf, "none", "wrong").mirrors
    hangs = mnist.Mirror(
        "slow",
        lambda folder, say: mirrors.download(f"{shelf.address}hangs", folder / "x", "", say),
    )
    broken = mnist.idx_source("mnist", "digits", mnist.MNIST, (*bad, hangs))
    with pytest.raises(DataError) as caught:
        broken.get(lambda text: None)
    assert str(caught.value) == (
        f"mnist could not be had from any of: {shelf.address}none/ (HTTP 404 Not Found); "
        f"{shelf.address}wrong/ (train-images-idx3-ubyte.gz is not the published file: its "
        "SHA-256 differs); slow (no answer within 0.2 s)"
    )
    assert list((folder / "mnist").iterdir()) == []


def test_what_is_there_and_right_is_not_fetched(folder, shelf, monkeypatch):
    files = small(mnist.MNIST, monkeypatch)
    shelf.files = {f"good/{name}.gz": gzip.compress(data) for name, data in files.items()}
    source(shelf, "good").get(print)
    before = len(shelf.requests)
    said = []
    assert source(shelf, "good").get(said.append) == folder / "mnist"
    assert said == ["mnist: it was already there"]
    assert len(shelf.requests) == before


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_there_and_wrong_is_replaced(folder, shelf, monkeypatch, suffix):
    files = small(mnist.MNIST, monkeypatch)
    shelf.files = {f"good/{name}.gz": gzip.compress(data) for name, data in files.items()}
    (folder / "mnist").mkdir(parents=True)
    for name in files:
        (folder / "mnist" / f"{name}{suffix}").write_bytes(b"broken")
    source(shelf, "good").get(print)
    assert load_mnist("test")[0].shape == (5, 28, 28)


def test_the_folder_of_the_operating_system_is_searched_last(folder, tmp_path, monkeypatch):
    folders = {"fashion-mnist": (tmp_path / "system",)}
    monkeypatch.setattr("coterie.data.sources.source.SYSTEM_FOLDERS", folders)
    files = small(mnist.FASHION, monkeypatch)
    (tmp_path / "system").mkdir()
    for name, data in files.items():
        (tmp_path / "system" / f"{name}.gz").write_bytes(gzip.compress(data))
    assert mnist.FASHION_SOURCE.where() == tmp_path / "system"
    assert load_fashion_mnist("train")[0].shape == (5, 28, 28)
    assert mnist.FASHION_SOURCE.get(print) == tmp_path / "system"


@pytest.mark.skipif(not DEBIAN.is_dir(), reason=f"{DEBIAN} is not there: dataset-fashion-mnist")
def test_debians_fashion_mnist_is_the_published_one():
    images, labels = load_fashion_mnist("train")
    assert images.shape == (60_000, 28, 28)
    assert torch.bincount(labels).tolist() == [6000] * 10


@pytest.mark.skipif(
    mnist.WRITERS_SOURCE.where() is None,
    reason="qmnist-train-labels-idx2-int is in no data folder: set COTERIE_DATA",
)
def test_mnist_was_written_by_539_people_of_two_groups():
    writer, series = load_mnist_writers("train")
    people = {s: writer[series == s].unique().numel() for s in series.unique().tolist()}
    assert people == {0: 289, 4: 250}
    assert [(series == s).sum().item() for s in (0, 4)] == [30_950, 29_050]
    other, _ = load_mnist_writers("test")
    assert len(other) == 10_000
    assert other.unique().numel() == 297
    assert not set(other.tolist()) & set(writer.tolist())
