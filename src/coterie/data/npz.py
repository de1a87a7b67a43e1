"""Files of numpy arrays, read as data: nothing in them is run."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import DataError

# What a broken archive raises, depending on which of its bytes are wrong.
BROKEN = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file, those of `names` that are there or all of them."""
    try:
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to trust it
            raise DataError(f"{path} cannot be read: it is not a .npz file, or the end is missing")
        # Without allow_pickle numpy refuses arrays of objects, the only ones that can run code.
        with np.load(path, allow_pickle=False) as file:
            wanted = file.files if names is None else [n for n in names if n in file.files]
            return {name: file[name] for name in wanted}
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from error
