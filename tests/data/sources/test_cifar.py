"""CIFAR-10 in its three forms; all become the same binary batches."""

import hashlib
import io
import json
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.core.errors import DataError
from coterie.data.sources import cifar, load_cifar10
from coterie.data.sources.cifar import decode_batch, from_python, from_sheet

ROWS = 4


def planes(seed):
    return np.random.default_rng(seed).integers(0, 256, (ROWS, 3072), np.uint8)


def labels(seed):
    return np.random.default_rng(seed).integers(0, 10, ROWS).tolist()


def binary(seed):
    rows = zip(labels(seed), planes(seed), strict=True)
    return b"".join(bytes([label]) + row.tobytes() for label, row in rows)


def python2(seed, kind=b"u1"):
    """A batch as Python 2 and numpy pickled it: protocol 2 with strings of bytes."""

    def text(data):
        return b"T" + struct.pack("<i", len(data)) + data

    data = planes(seed)
    dtype = (
        b"cnumpy\ndtype\n" + text(kind) + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01"
        + b"K"
        + bytes([ROWS])
        + b"M\x00\x0c\x86"
        + dtype
        + b"\x89"
        + text(data.tobytes())
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels(seed)) + b"e"
    return (
        b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + numbers + text(b"data") + array
        + text(b"filenames") + b"](" + text(b"a.png") * ROWS + b"eu."
    )  # fmt: skip


def sheet(seed, mode="RGB"):
    pixels = planes(seed).reshape(ROWS, 3, 1024).transpose(0, 2, 1)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).convert(mode).save(file, "PNG")
    return file.getvalue()


def in_form(form, folder):
    """Six small batches in a folder, in one of the forms, the seed is the number of the batch."""
    inside = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}.get(form, "")
    place = folder / "cifar10" / inside
    place.mkdir(parents=True)
    for seed, name in enumerate(cifar.BATCHES, 1):
        stem = name.removesuffix(".bin")
        if form == "binary":
            (place / name).write_bytes(binary(seed))
        elif form == "python":
            (place / stem).write_bytes(python2(seed))
        else:
            (place / f"{stem}.png").write_bytes(sheet(seed))
    if form == "sheets":
        train = [label for seed in range(1, 6) for label in labels(seed)]
        (place / "train_lables.json").write_text(json.dumps(train))
        (place / "test_lables.json").write_text(json.dumps(labels(6)))
    return place


@pytest.fixture
def small(folder, monkeypatch):
    """The small batches taken for the published ones."""
    for seed, name in enumerate(cifar.BATCHES, 1):
        monkeypatch.setitem(cifar.BATCHES, name, hashlib.sha256(binary(seed)).hexdigest())
    return folder


@pytest.mark.parametrize("form", ["binary", "python", "sheets"])
def test_every_form_gives_the_same_images(small, form):
    in_form(form, small)
    assert cifar.SOURCE.where() == small / "cifar10"
    assert cifar.SOURCE.get(print) == small / "cifar10"
    images, numbers = load_cifar10("train")
    assert images.shape == (5 * ROWS, 32, 32, 3)
    assert (images.dtype, numbers.dtype) == (torch.uint8, torch.int64)
    assert numbers.tolist() == [label for seed in range(1, 6) for label in labels(seed)]
    # The green of the pixel in line 2, column 5 of the second image of the third batch.
    assert images[2 * ROWS + 1, 2, 5, 1] == planes(3)[1, 1024 + 2 * 32 + 5]
    assert load_cifar10("test")[1].tolist() == labels(6)


@pytest.mark.parametrize("form", ["binary", "python", "sheets"])
def test_a_pixel_off_is_not_cifar(small, monkeypatch, form):
    in_form(form, small)
    monkeypatch.setitem(cifar.BATCHES, "test_batch.bin", "0" * 64)
    with pytest.raises(
        DataError, match=r"test_batch.bin of .* not the published.*get cifar10` gets"
    ):
        load_cifar10("test")


def test_without_it_the_sentence_names_the_command(folder):
    with pytest.raises(DataError, match="`coterie data get cifar10` gets it"):
        load_cifar10("train")


def test_a_sheet_without_labels_is_told(small):
    (in_form("sheets", small) / "test_lables.json").unlink()
    with pytest.raises(DataError, match=r"has test_batch.png but lacks its labels"):
        load_cifar10("test")


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (b"", "must be rows of 3073 bytes, got 0 bytes"),
        (bytes(3072), "must be rows of 3073 bytes, got 3072 bytes"),
        (bytes([10]) + bytes(3072), "must be at most 9, got 10"),
    ],
)
def test_a_broken_binary_batch_is_refused(contents, sentence):
    with pytest.raises(DataError, match=sentence):
        decode_batch(contents)


class Evil:
    """Ends the process when it is unpickled as pickle would."""

    def __reduce__(self):
        return os._exit, (66,)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (pickle.dumps({b"data": Evil()}), r"it asks for (posix|nt)._exit, which is not data"),
        (pickle.dumps({b"data": np.zeros(3, "O")}, 2), "its arrays must be of unsigned bytes"),
        (python2(1, b"f8"), "its arrays must be of unsigned bytes, got b'f8'"),
        (python2(1)[:-100], "is not a Python batch of CIFAR-10"),
        (b"", "is not a Python batch of CIFAR-10: EOFError"),
        (b"<html>", "is not a Python batch of CIFAR-10"),
        (pickle.dumps({b"labels": []}, 2), "is not a Python batch of CIFAR-10: KeyError"),
        (pickle.dumps([1, 2], 2), "is not a Python batch of CIFAR-10"),
        (
            pickle.dumps({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2]}, 2),
            r"must have images of 3072 bytes, got \(2, 3\)",
        ),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 2),
            "has 2 images, and not as many labels",
        ),
        (
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [256]}, 2),
            "a label in batch does not lie in 0 to 9",
        ),
    ],
)
def test_a_pickle_that_is_not_a_batch_is_refused_and_runs_nothing(contents, sentence):
    with pytest.raises(DataError, match=sentence):
        from_python(contents, "batch")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_later_pythons_are_read(protocol):
    values = {b"data": planes(1), b"labels": labels(1)}
    assert from_python(pickle.dumps(values, protocol), "batch") == binary(1)
    values[b"data"] = np.asfortranarray(planes(1))
    assert from_python(pickle.dumps(values, protocol), "batch") == binary(1)


@pytest.mark.parametrize(
    ("png", "numbers", "sentence"),
    [
        (sheet(1)[:-200], "[1, 2, 3, 4]", "cannot be read"),
        (b"GIF89a", "[1, 2, 3, 4]", "cannot be read"),
        (sheet(1, "L"), "[1, 2, 3, 4]", "must be RGB, 1024 wide and at most 10000 high, got L"),
        (sheet(1), "[1, 2, 3", "cannot be read"),
        (sheet(1), "[1, 2, 3]", "has 4 images, and not as many labels"),
        (sheet(1), '["a", "b", "c", "d"]', "has 4 images, and not as many labels"),
        (sheet(1), "{}", "must be a list, got dict"),
    ],
)
def test_a_broken_sheet_is_refused(png, numbers, sentence):
    with pytest.raises(DataError, match=sentence):
        from_sheet(png, numbers.encode(), "test_batch")
