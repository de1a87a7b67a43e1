"""The 1,797 handwritten digits that come with scikit-learn."""

from __future__ import annotations

import torch
from torch import Tensor


def load_digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] from 0 to 1, and labels."""
    from sklearn.datasets import load_digits  # a second that only those pay who look at them

    found = load_digits()
    return torch.from_numpy(found.images).float() / 16, torch.from_numpy(found.target)
