"""The IDX format of MNIST and its kin: a magic number, the shape, the values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.core.errors import DataError

KINDS: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(contents: bytes) -> np.ndarray:
    """An array of bytes or of 32-bit integers in the IDX format.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    >>> read_idx(bytes([0, 0, 12, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 5])).tolist()
    [[256, 5]]
    """
    if len(contents) < 4 or contents[:2] != b"\0\0" or contents[2] not in KINDS:
        raise DataError("not an IDX file of unsigned bytes or 32-bit integers")
    kind, axes = KINDS[contents[2]], contents[3]
    start = 4 + 4 * axes
    if len(contents) < start:
        raise DataError(f"an IDX file of {axes} axes ends after {len(contents)} bytes")
    shape = np.frombuffer(contents, ">u4", count=axes, offset=4).tolist()
    values = (len(contents) - start) / kind.itemsize
    if values != math.prod(shape):
        raise DataError(f"an IDX file of shape {shape} has {values:g} values")
    array = np.frombuffer(contents, kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="))
