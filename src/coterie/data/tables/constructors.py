"""Federations in Python, from whatever holds the user's data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import SettingError
from coterie.data.federation import Federation
from coterie.data.tables.arrays import read_datasets
from coterie.data.tables.read import existing_path
from coterie.data.tables.table import Table, prepare_arrays


def federation_from_table(
    source: Any,
    *,
    client: str = "client",
    label: str = "label",
    features: str | Sequence[str] = "",
    target: str = "auto",
    train_share: float = 0.8,
    min_samples: int = 2,
    categories: int = 20,
    standardise: bool = True,
    seed: int = 0,
) -> Federation:
    """A federation from a table: a path, a data frame, an Arrow table or a Hugging Face dataset.

    The arguments are the settings of `Table`; the module's text says what becomes of columns.

    >>> import pytest; pyarrow = pytest.importorskip("pyarrow")
    >>> rows = {"client": ["a", "a", "b", "b"], "label": [0, 1, 0, 1], "age": [30, 40, 50, 60]}
    >>> federation = federation_from_table(pyarrow.table(rows), train_share=0.5)
    >>> len(federation), federation.train.x.shape
    (2, torch.Size([2, 1]))
    """
    settings = Table(
        client=client,
        label=label,
        features=features if isinstance(features, str) else ",".join(features),
        target=target,
        train_share=train_share,
        min_samples=min_samples,
        categories=categories,
        standardise=standardise,
    )
    return settings.prepare(source, seed).federation


def federation_from_folder(path: str | Path, **settings: Any) -> Federation:
    """A federation from a folder with one file for each client, named after it.

    The settings are those of `federation_from_table`. `.npz` files hold arrays x and y, which are
    taken as they are; then `label`, `features`, `categories` and `standardise` do nothing.
    """
    if not existing_path(path).is_dir():
        raise SettingError(f"a folder with a file for each client is needed, got the file {path}")
    return federation_from_table(path, **settings)


def federation_from_datasets(
    datasets: Iterable[Any],
    *,
    target: str = "auto",
    train_share: float = 0.8,
    min_samples: int = 2,
    seed: int = 0,
) -> Federation:
    """A federation from PyTorch datasets of (x, y) pairs, one for each client; x stays as it is.

    >>> import torch; from torch.utils.data import TensorDataset
    >>> mine = [TensorDataset(torch.ones(5, 3), torch.tensor([0, 1, 0, 1, 1])) for _ in range(4)]
    >>> federation = federation_from_datasets(mine)
    >>> federation.train.sizes.tolist(), federation.test.sizes.tolist()
    ([4, 4, 4, 4], [1, 1, 1, 1])
    """
    settings = Table(target=target, train_share=train_share, min_samples=min_samples)
    return prepare_arrays(read_datasets(datasets), settings, seed, "own data").federation
