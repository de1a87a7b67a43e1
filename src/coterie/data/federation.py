"""A federation: the data of many clients, in flat storage.

All samples of all clients lie one after another, with offsets where each client begins. Nothing is
padded until a chunk of clients of like size is put together, so that one very large client does not
make all the others large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.cohort import Rows
from coterie.core.errors import DataError, SettingError


class Indexable(Protocol):
    """Features that are had by their rows: a tensor, or images that are decoded when asked for."""

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Samples:
    """The samples of m clients, one client after another."""

    x: Tensor  # [N, ...] features
    y: Tensor  # [N] labels or targets
    offsets: Tensor  # [m + 1]: client i has rows offsets[i] to offsets[i + 1]

    @classmethod
    def of(cls, clients: Iterable[tuple[Any, Any]]) -> Samples:
        """Store (x, y) pairs, one for each client; arrays, tensors or lists."""
        pairs = [as_pair(i, client) for i, client in enumerate(clients)]
        if not pairs:
            raise DataError("a federation needs at least one client, got none")
        for what, tensors in zip(("samples", "targets"), zip(*pairs, strict=True), strict=True):
            shape, kind = tensors[0].shape[1:], tensors[0].dtype
            for i, values in enumerate(tensors):
                if values.shape[1:] != shape or values.dtype != kind:
                    raise DataError(
                        f"all clients must have {what} of one shape and type: client 0 has "
                        f"{list(shape)} {kind}, client {i} has {list(values.shape[1:])} "
                        f"{values.dtype}"
                    )
        sizes = torch.tensor([0, *(len(y) for _, y in pairs)])
        return cls(
            torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), sizes.cumsum(0)
        )

    @classmethod
    def select(cls, x: Indexable, y: Tensor, parts: Sequence[Tensor]) -> Samples:
        """The rows `parts[i]` of a data set for each client i."""
        rows = torch.cat(list(parts))
        sizes = torch.tensor([0, *map(len, parts)])
        return cls(x[rows], y[rows], sizes.cumsum(0))

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """Samples of each client, [m]."""
        return self.offsets.diff()

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Features and targets of client i, views."""
        begin, end = self.offsets[i].item(), self.offsets[i + 1].item()
        return self.x[begin:end], self.y[begin:end]

    def part(self, begin: int, end: int) -> Samples:
        """The samples of clients `begin` to `end`, to be sent elsewhere: not views."""
        offsets = self.offsets[begin : end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Samples(self.x[first:last].clone(), self.y[first:last].clone(), offsets - first)

    def rows(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` side by side, padded with zeros to the longest of them.

        Neighbours of equal size need no copy.
        """
        begin, size = self.offsets[ids], self.sizes[ids]
        longest = int(size.max())
        if bool((size == longest).all()) and bool((ids.diff() == 1).all()):
            first, last = int(begin[0]), int(begin[-1]) + longest
            lead = (len(ids), longest)
            x, y = self.x[first:last], self.y[first:last]
            return Rows(x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:]), size)
        place = torch.arange(longest)
        inside = place < size[:, None]  # [c, n]
        index = torch.where(inside, begin[:, None] + place, 0)
        x, y = self.x[index], self.y[index]
        x[~inside], y[~inside] = 0, 0
        return Rows(x, y, size)


@dataclass(frozen=True)
class Federation:
    """The data of a federation: what clients train on, what they are tested on, what is known.

    The test part belongs to the same clients, unless `unseen` says that it belongs to others, which
    never train and are served a model all the same.
    """

    train: Samples
    test: Samples | None = None
    cluster: Tensor | None = None  # [m] true clusters
    unseen: bool = False  # the test part belongs to other clients
    test_cluster: Tensor | None = None  # [test clients] their true clusters, if unseen
    truth: Tensor | None = None  # [groups, d] true parameters, for synthetic data
    noise: float | None = None  # standard deviation of the noise, for synthetic data
    sample_clusters: bool = False  # labels are the true clusters of samples, to score by
    name: str = "own data"
    clients: tuple[str, ...] = ()  # names of the clients, where they have any
    features: tuple[str, ...] = ()  # names of the features
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    class_count: int = 0  # classes that labels can be; 0: as many as the labels show
    scale: float = 1.0  # features are divided by it before a network sees them: 255 for bytes

    def __post_init__(self) -> None:
        if self.test is not None and not self.unseen and len(self.test) != len(self.train):
            raise DataError(
                f"{len(self.train)} clients train but {len(self.test)} are tested: "
                "give each client its own test part, or say `unseen=True`"
            )
        if self.test_cluster is not None and (
            self.test is None or len(self.test_cluster) != len(self.test)
        ):
            raise DataError(
                f"true clusters are given for {len(self.test_cluster)} test clients, but there are "
                f"{0 if self.test is None else len(self.test)}"
            )
        if self.clients and len(self.clients) != len(self.train):
            raise DataError(f"names are given for {len(self.clients)} of {len(self.train)} clients")
        if self.cluster is not None and len(self.cluster) != len(self.train):
            raise DataError(
                f"true clusters are given for {len(self.cluster)} of {len(self.train)} clients"
            )

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, Any]],
        *,
        test: Sequence[tuple[Any, Any]] | None = None,
        cluster: Any = None,
        unseen: bool = False,
        test_cluster: Any = None,
        name: str = "own data",
    ) -> Federation:
        """A federation from (x, y) pairs, one for each client: arrays or tensors, as they are.

        >>> import numpy as np
        >>> federation = Federation.from_clients(
        ...     [(np.zeros((5, 3)), np.array([0, 1, 0, 1, 0])), (np.ones((2, 3)), np.array([1, 1]))]
        ... )
        >>> len(federation), federation.train.sizes.tolist()
        (2, [5, 2])
        """
        train, tested = Samples.of(clients), None if test is None else Samples.of(test)
        numbers, test_numbers = number_clusters(cluster, test_cluster)
        return cls(train, tested, numbers, unseen, test_numbers, name=name)

    @staticmethod
    def from_table(
        source: Any, *, features: str | Sequence[str] = "", seed: int = 0, **settings: Any
    ) -> Federation:
        """A federation from a file, data frame, Arrow table or Hugging Face dataset.

        The settings are those of `coterie describe table`: `client` and `label` name the columns
        that say whose row it is and what is to be predicted.

        >>> import pytest; pyarrow = pytest.importorskip("pyarrow")
        >>> rows = {"client": ["a", "a", "b", "b"], "label": [0, 1, 0, 1], "age": [30, 40, 50, 60]}
        >>> federation = Federation.from_table(pyarrow.table(rows), train_share=0.5)
        >>> len(federation), federation.train.x.shape
        (2, torch.Size([2, 1]))
        """
        from coterie.data.tables.table import Table

        columns = features if isinstance(features, str) else ",".join(features)
        return Table(features=columns, **settings).prepare(source, seed).federation

    @staticmethod
    def from_folder(path: str | Path, **settings: Any) -> Federation:
        """A federation from a folder with one `.npz`, `.csv` or `.parquet` file per client.

        The settings are those of `from_table`. `.npz` files hold arrays x and y, which are taken as
        they are; then `label`, `features`, `categories` and `standardise` do nothing.
        """
        from coterie.data.tables.read import existing_path

        if not existing_path(path).is_dir():
            raise SettingError(
                f"a folder with a file for each client is needed, got the file {path}"
            )
        return Federation.from_table(path, **settings)

    @staticmethod
    def from_datasets(
        datasets: Iterable[Any],
        *,
        target: str = "auto",
        train_share: float = 0.8,
        min_samples: int = 2,
        seed: int = 0,
    ) -> Federation:
        """A federation from PyTorch datasets of (x, y) pairs, one per client; x stays as it is.

        >>> from torch.utils.data import TensorDataset
        >>> mine = [TensorDataset(torch.ones(5, 3), torch.tensor([0, 1, 0, 1, 1]))] * 4
        >>> federation = Federation.from_datasets(mine)
        >>> federation.train.sizes.tolist(), federation.test.sizes.tolist()
        ([4, 4, 4, 4], [1, 1, 1, 1])
        """
        from coterie.data.tables.arrays import read_datasets
        from coterie.data.tables.table import Table, prepare_arrays

        settings = Table(target=target, train_share=train_share, min_samples=min_samples)
        return prepare_arrays(read_datasets(datasets), settings, seed, "own data").federation

    def __len__(self) -> int:
        """The number of clients that train."""
        return len(self.train)

    @property
    def outputs(self) -> int:
        """The outputs that a network needs: one for each class, or one for real targets."""
        if self.train.y.is_floating_point():
            return 1
        parts = [part for part in (self.train, self.test) if part is not None]
        return self.class_count or max(int(part.y.max()) for part in parts) + 1


def number_clusters(*clusters: Any) -> list[Tensor | None]:
    """True clusters of whatever names, numbered from 0 alike for training and test clients."""
    given = [np.asarray(names).ravel() for names in clusters if names is not None]
    if not given:
        return [None] * len(clusters)
    numbers = torch.from_numpy(np.unique(np.concatenate(given), return_inverse=True)[1])
    parts = iter(numbers.split([len(names) for names in given]))
    return [None if names is None else next(parts) for names in clusters]


def as_pair(i: int, client: Any) -> tuple[Tensor, Tensor]:
    """One client's samples as tensors; refuse what no model could learn from."""
    try:
        x, y = client
    except (TypeError, ValueError):
        raise DataError(f"client {i} must be a pair of samples and targets") from None
    try:
        features, targets = as_tensor(x), as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"client {i}: not an array of numbers ({error})") from error
    if features.dim() < 2 or targets.dim() < 1 or len(features) != len(targets):
        raise DataError(
            f"client {i} must have samples [n, ...] and n targets, got shapes "
            f"{list(features.shape)} and {list(targets.shape)}"
        )
    if len(features) == 0:
        raise DataError(f"client {i} has no samples")
    for name, part in (("features", features), ("targets", targets)):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise DataError(f"client {i} has NaN or infinite values in its {name}")
    return features, targets


def as_tensor(values: Any) -> Tensor:
    """Values as a tensor that shares their memory where it can."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # PyTorch has few operations for large unsigned types
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


def select_federation(
    settings: Any,
    x: Indexable,
    y: Tensor,
    train: Sequence[Tensor],
    test: Sequence[Tensor],
    **known: Any,
) -> Federation:
    """The rows `train[i]` and `test[i]` of a data set for each client i, and what else is known."""
    return Federation(
        Samples.select(x, y, train),
        Samples.select(x, y, test),
        class_count=settings.class_count,
        scale=settings.pixel_scale,
        **known,
    )


def split_parts(
    parts: Sequence[Tensor], share: float, seed: int, names: Sequence[int | str] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's rows at random in two: `share` of them to train on, the rest to be tested on.

    Both get at least one row. Chance goes by the names of the clients, or by their numbers.
    """
    train, test = [], []
    for name, rows in zip(names or range(len(parts)), parts, strict=True):
        order, cut = split_order(len(rows), seed, name), split_cut(len(rows), share)
        train.append(rows[order[:cut]])
        test.append(rows[order[cut:]])
    return train, test


def split_order(rows: int, seed: int, client: int | str) -> Tensor:
    """The order in which a client's rows are split, first those it trains on, [rows]."""
    return torch.randperm(rows, generator=seeds.generator(seed, "split", client))


def split_cut(rows: int, share: float) -> int:
    """How many of a client's rows are trained on."""
    return min(max(int(rows * share), 1), rows - 1)
