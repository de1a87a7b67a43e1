"""Pickles read as data: plain values and arrays of bytes, and nothing that runs.

A pickle is a program that may call any function by name. CIFAR-10's Python batches are pickles, so
this reader knows the five names that occur in them and refuses every other.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from coterie.core.errors import DataError


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain values and arrays of bytes, and refuses everything else.

    Nothing of numpy is called: stand-ins take the place of its arrays and kinds.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): blank_array,
            ("numpy._core.multiarray", "_reconstruct"): blank_array,
            ("numpy", "ndarray"): ByteArray,
            ("numpy", "dtype"): ByteKind,
            ("_codecs", "encode"): latin_bytes,
        }
        if (module, name) not in known:
            raise DataError(f"it asks for {module}.{name}, which is not data")
        return known[module, name]


class ByteKind:
    """Stands for numpy's kind of unsigned bytes."""

    def __init__(self, code: str | bytes, *flags: object) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise DataError(f"its arrays must be of unsigned bytes, got {code!r}")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment mean nothing for bytes."""


class ByteArray:
    """Stands for an array of numpy while it is read."""

    values: np.ndarray

    def __setstate__(self, state: tuple[int, tuple[int, ...], ByteKind, bool, bytes]) -> None:
        _, shape, _, by_columns, contents = state
        order: Any = "F" if by_columns else "C"
        self.values = np.frombuffer(contents, np.uint8).reshape(shape, order=order)


def blank_array(*_: object) -> ByteArray:
    """What numpy's `_reconstruct` makes: an array that is given its contents next."""
    return ByteArray()


def latin_bytes(text: str, _: str = "latin1") -> bytes:
    """Bytes, which old pickles hold as text."""
    return text.encode("latin1")
