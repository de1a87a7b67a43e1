"""Clients whose samples are arrays already: `.npz` files and PyTorch datasets.

Features are taken as they are, whatever their shape, but float64 becomes float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import DataError
from coterie.data.client_samples import as_tensor
from coterie.data.federation import Samples
from coterie.data.npz import read_arrays
from coterie.data.tables.client_rows import ClientRows, group_rows
from coterie.data.tables.columns import Column, array_column
from coterie.data.tables.read import client_files, first_line


class Arrays(NamedTuple):
    """The samples of all clients, one client after another."""

    x: Tensor  # [N, ...]
    label: Column | None  # [N] not yet numbered; None: there is none
    clients: ClientRows


def stack_clients(names: list[str], pairs: list[tuple[Any, Any]], *, fewest: int = 2) -> Arrays:
    """Arrays of (x, y) pairs, one for each client; refuse shapes and values that do not fit.

    y is None with all clients where there are no labels.
    """
    if not pairs:
        raise DataError("a federation needs two clients or more, got none")
    label = None
    if any(y is not None for _, y in pairs):
        ys = [np.asarray(y) for _, y in pairs]
        for name, y in zip(names, ys, strict=True):
            if y.ndim != 1:
                raise DataError(
                    f"client {name} must have one label per sample, got {list(y.shape)}"
                )
        label = array_column("y", np.concatenate(ys))
        # Labels may be text, which samples cannot hold: their places stand in for them.
        pairs = [(x, np.arange(len(y))) for (x, _), y in zip(pairs, ys, strict=True)]
    samples = Samples.of((as_single(name, x), y) for name, (x, y) in zip(names, pairs, strict=True))
    owner = np.repeat(np.arange(len(pairs)), samples.sizes.numpy())
    owners = Column("client", "text", owner, tuple(names))
    return Arrays(samples.x, label, group_rows(owners, fewest=fewest))


def as_single(name: str, x: Any) -> Tensor:
    """A client's features as a tensor in single, not double precision; other types stay."""
    try:
        features = as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"client {name} must have numbers as features, {error}") from error
    return features.float() if features.dtype == torch.float64 else features


def read_npz(folder: Path, *, fewest: int = 2) -> Arrays:
    """The clients of a folder of `.npz` files; file names are theirs.

    They hold the arrays x and y, or all of them x alone, where there are no labels.
    """
    files = client_files(folder)
    arrays = [read_arrays(path, ("x", "y")) for path in files]
    labelled = any("y" in each for each in arrays)
    for path, each in zip(files, arrays, strict=True):
        others = [] if labelled else [name for name in read_arrays(path) if name != "x"]
        lacking = [name for name in ("x", "y") if name not in each and (name == "x" or labelled)]
        if lacking or others:
            what = f"no {lacking[0]}" if lacking else f"no y, but {others[0]}"
            raise DataError(
                f"{path.name} must hold the arrays x and y, or x alone in all files: it has {what}"
            )
    pairs = [(each["x"], each.get("y")) for each in arrays]
    return stack_clients([path.stem for path in files], pairs, fewest=fewest)


def read_datasets(datasets: Iterable[Any]) -> Arrays:
    """The clients of PyTorch datasets, one for each; they are called 0, 1, 2, ..."""
    pairs = [read_dataset(i, dataset) for i, dataset in enumerate(datasets)]
    return stack_clients([str(i) for i in range(len(pairs))], pairs)


def read_dataset(i: int, dataset: Any) -> tuple[Tensor, Tensor]:
    """All samples x [n, ...] and labels y [n] of a dataset.

    They are its two `tensors` if it has those, as a `TensorDataset`, and else its items one by one.
    """
    whole = getattr(dataset, "tensors", None)
    if isinstance(whole, tuple | list):
        if len(whole) != 2:
            raise DataError(f"client {i} must have the tensors x and y, got {len(whole)} tensors")
        return whole[0], whole[1]
    try:
        items = [dataset[j] for j in range(len(dataset))]
        x = torch.stack([as_tensor(x) for x, _ in items])
        return x, torch.stack([as_tensor(y).reshape(()) for _, y in items])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"client {i} must be a dataset of (x, y) pairs of one shape: {first_line(error)}"
        ) from error
