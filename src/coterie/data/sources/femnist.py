"""FEMNIST: handwritten digits and letters by writer.

Caldas et al.: LEAF, A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097

Read from any of three layouts: one `.npz` file, LEAF's own JSON files, or the parquet files in
which it is published as flwrlabs/femnist on the Hugging Face hub. In all of them a pixel of 255 is
white paper, and classes are 0 to 9, A to Z, a to z.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.npz import read_arrays
from coterie.data.sources.source import Source, source_folders

SIDE = 28
CLASSES = 62
SPLITS = ("train", "test")
COLUMNS = ("image", "writer_id", "character")
BOMB = Image.DecompressionBombError
MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
IMAGE_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")


class FemnistData(NamedTuple):
    """Images by writer; the rows of a writer lie together, those to train on first."""

    images: Tensor  # [n, 28, 28] bytes, 255 is white
    labels: Tensor  # [n] 0 to 61
    writer: Tensor  # [n] index into `writers`, ascending
    split: Tensor | None  # [n] 0 train, 1 test; None if the files have no split
    writers: tuple[str, ...]  # names


class Block(NamedTuple):
    """Some rows as they come from a file."""

    images: np.ndarray  # [n, 28, 28]
    labels: np.ndarray  # [n]
    writers: list[str]  # [n] names
    split: int | None


def load_femnist(*, resampled: bool = False) -> FemnistData:
    """FEMNIST from the first folder of the cache that has it.

    Of the `.npz` file only the writers that LEAF's own tool scaled down are kept, those with
    `writer_pipeline` 0, unless `resampled`: another tool's images would be a cluster of their own.
    """
    for place in source_folders("femnist"):
        if npz := npz_file(place):
            return from_npz(npz, resampled=resampled)
        if folder := leaf_folder(place):
            return assemble_blocks(leaf_blocks(folder), folder)
        if tables := parquet_files(place):
            return assemble_blocks(parquet_blocks(tables), place)
    raise DataError(SOURCE.missing())


def npz_file(place: Path) -> Path | None:
    """The `.npz` file in a folder, the first one by name."""
    return min(place.glob("*.npz"), default=None)


def leaf_folder(place: Path) -> Path | None:
    """The folder with LEAF's train and test."""
    for folder in (place / "data", place):
        if all(any((folder / split).glob("*.json")) for split in SPLITS):
            return folder
    return None


def parquet_files(place: Path) -> list[Path]:
    """All parquet files in a folder and below it."""
    return sorted(place.rglob("*.parquet"))


def from_npz(path: Path, *, resampled: bool = False) -> FemnistData:
    """FEMNIST from one file with x, y, writer, writer_name, and maybe split, writer_pipeline."""
    arrays = read_arrays(path)
    try:
        x, y, writer = arrays["x"], arrays["y"].astype(np.int64), arrays["writer"].astype(np.int64)
        names = [str(name) for name in arrays["writer_name"]]
    except KeyError as error:
        raise DataError(f"{path} must have an array named {error.args[0]}") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    kept = np.ones(len(names), bool)
    if "writer_pipeline" in arrays and not resampled:
        kept = arrays["writer_pipeline"] == 0
    split = arrays.get("split")
    if not x.shape[:1] == y.shape == writer.shape or kept.shape != (len(names),):
        raise DataError(f"the arrays of {path} differ in length")
    if split is not None and (split.shape != y.shape or not set(np.unique(split)) <= {0, 1}):
        raise DataError(f"`split` of {path} must be 0 or 1 for each image")
    if writer.size and not 0 <= writer.min() <= writer.max() < len(names):
        raise DataError(f"`writer` of {path} must lie in 0 to {len(names) - 1}")
    rows = kept[writer]
    number = np.cumsum(kept) - 1  # of each writer that is kept, among those
    return sort_by_writer(
        x[rows],
        y[rows],
        number[writer[rows]],
        None if split is None else split[rows],
        [name for name, keep in zip(names, kept, strict=True) if keep],
        path,
    )


def leaf_blocks(folder: Path) -> Iterator[Block]:
    """The rows of LEAF's JSON files: 784 numbers from 0 to 1 for each image."""
    for number, split in enumerate(SPLITS):
        for path in sorted((folder / split).glob("*.json")):
            try:
                values = json.loads(path.read_bytes())
                users, user_data = values["users"], values["user_data"]
                sizes = values.get("num_samples", [len(user_data[user]["y"]) for user in users])
                for user, size in zip(users, sizes, strict=True):
                    x = np.array(user_data[user]["x"], dtype=np.float64)
                    y = np.array(user_data[user]["y"])
                    if x.shape != (size, SIDE * SIDE) or len(y) != size:
                        raise DataError(
                            f"{user} in {path} must have {size} images of {SIDE * SIDE} numbers "
                            f"and as many labels, got {list(x.shape)} and {len(y)}"
                        )
                    if not (x.min(initial=0.0) >= 0 and x.max(initial=0.0) <= 1):
                        raise DataError(f"the pixels of {user} in {path} must lie in 0 to 1")
                    images = np.rint(x * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
                    yield Block(images, y, [str(user)] * size, number)
            except MALFORMED as error:
                raise DataError(
                    f"{path} is not a JSON file of LEAF with users, num_samples and user_data: "
                    f"{error!r}"
                ) from error


def parquet_blocks(paths: Iterable[Path]) -> Iterator[Block]:
    """The rows of the hub's parquet files: an image file, its writer and its class."""
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                lacking = set(COLUMNS) - set(file.schema_arrow.names)
                if lacking:
                    raise DataError(f"{path} must have a column {' and '.join(sorted(lacking))}")
                for piece in filter(len, file.iter_batches(columns=list(COLUMNS))):
                    columns: dict[str, Any] = piece.to_pydict()
                    if None in columns["writer_id"]:
                        raise DataError(f"every image in {path} must have a writer_id")
                    yield Block(
                        np.stack([decode_image(image, path) for image in columns["image"]]),
                        np.array(columns["character"]),
                        [str(name) for name in columns["writer_id"]],
                        None,
                    )
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def decode_image(cell: Any, path: Path) -> np.ndarray:
    """The grey values [28, 28] of an image file in a cell of a table."""
    try:
        with Image.open(io.BytesIO(cell["bytes"]), formats=IMAGE_FORMATS) as image:
            # Before anything is decoded: a small file can claim to be a huge image.
            if image.size != (SIDE, SIDE):
                raise DataError(f"images in {path} must be {SIDE} x {SIDE}, got {image.size}")
            return np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, BOMB) as error:
        raise DataError(f"an image in {path} cannot be read: {error}") from error


def assemble_blocks(blocks: Iterable[Block], origin: Path) -> FemnistData:
    """All blocks as one, with writers numbered as they come."""
    found, numbers = list(blocks), dict[str, int]()
    writer = [numbers.setdefault(name, len(numbers)) for block in found for name in block.writers]
    if not numbers:
        raise DataError(f"there is no image in the files of {origin}")
    splits = [np.full(len(each.labels), each.split) for each in found if each.split is not None]
    return sort_by_writer(
        np.concatenate([block.images for block in found]),
        np.concatenate([block.labels for block in found]),
        np.array(writer, np.int64),
        np.concatenate(splits) if splits else None,
        list(numbers),
        origin,
    )


def sort_by_writer(
    images: np.ndarray,
    labels: np.ndarray,
    writer: np.ndarray,
    split: np.ndarray | None,
    names: list[str],
    origin: Path,
) -> FemnistData:
    """The checked arrays as tensors, each writer's rows together."""
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"images of {origin} must be bytes [n, {SIDE}, {SIDE}], "
            f"got {images.dtype} {list(images.shape)}"
        )
    if labels.dtype.kind not in "iu" or (
        labels.size and not 0 <= labels.min() <= labels.max() < CLASSES
    ):
        raise DataError(f"labels of {origin} must lie in 0 to {CLASSES - 1}")
    order = np.argsort(writer if split is None else 2 * writer + split, kind="stable")
    return FemnistData(
        torch.from_numpy(images[order]),
        torch.from_numpy(labels[order].astype(np.int64)),
        torch.from_numpy(writer[order].astype(np.int64)),
        None if split is None else torch.from_numpy(split[order].astype(np.int64)),
        tuple(names),
    )


def has_femnist(folder: Path) -> bool:
    """Whether a folder has FEMNIST in one of the three layouts."""
    return bool(npz_file(folder) or leaf_folder(folder) or parquet_files(folder))


def check_femnist(folder: Path) -> None:
    """Refuse a broken `.npz` file. Nothing is published to check against, and what takes long to
    decode is checked as it is read."""
    if npz := npz_file(folder):
        from_npz(npz)


SOURCE = Source(
    "femnist",
    "handwritten digits and letters by writer, 28 x 28",
    has_femnist,
    check_femnist,
    by_hand=(
        "place there the train-*.parquet files of huggingface.co/datasets/flwrlabs/femnist, or "
        "the folders data/train and data/test with the JSON files that LEAF's preprocess.sh writes"
    ),
)
