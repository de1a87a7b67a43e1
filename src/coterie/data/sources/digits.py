"""The 1,797 handwritten digits that come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = "datasets/data/digits.csv.gz"  # in scikit-learn's folder


def load_digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] from 0 to 1, and labels."""
    rows = read_digits()
    pixels, label = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1])
    return pixels.float().view(-1, 8, 8) / 16, label.long()


def read_digits() -> np.ndarray:
    """The pixels and the label of every digit, [1797, 65].

    The file is read as it lies there, for importing scikit-learn takes a second.
    """
    found = find_spec("sklearn")
    file = None if found is None or found.origin is None else Path(found.origin).parent / FILE
    if file is not None and file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as load_by_sklearn

    known = load_by_sklearn()
    return np.column_stack([known.data, known.target])
