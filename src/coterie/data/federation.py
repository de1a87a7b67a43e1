"""A federation: the data of many clients, in flat storage.

All samples of all clients lie one after another, with offsets where each client begins. Nothing is
padded until a chunk of clients of like size is put together, so that one very large client does not
make all the others large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import DataError, SettingError
from coterie.core.rows import Rows
from coterie.core.sample_kinds import numbers_per_sample, sample_kinds, stored_tensors
from coterie.core.samples import place_rows, view_rows
from coterie.data.client_samples import (
    Parts,
    have_targets,
    read_clients,
    read_held_out,
    sequence_parts,
    store_clients,
)

if TYPE_CHECKING:
    from coterie.data.tables.schema import Schema


class Indexable(Protocol):
    """Features that are had by their rows: a tensor, or images that are decoded when asked for."""

    def __getitem__(self, rows: Tensor, /) -> Any: ...


@dataclass(frozen=True)
class Samples:
    """The samples of m clients, one client after another."""

    x: Any  # [N, ...] features; or sequences of their own lengths, or several inputs
    y: Any  # [N, ...] labels or targets; or sequences of them
    offsets: Tensor  # [m + 1]: client i has rows offsets[i] to offsets[i + 1]

    @classmethod
    def of(cls, clients: Iterable[tuple[Any, Any]]) -> Samples:
        """Store (x, y) pairs, one for each client: see `Federation.from_clients`."""
        parts = read_clients(clients)
        return cls.store(parts, sequence_parts(parts))

    @classmethod
    def store(cls, clients: Sequence[Parts], sequences: set[str]) -> Samples:
        """Store what `read_clients` gives; parts of the names `sequences` are sequences."""
        x, y, sizes = store_clients(clients, sequences)
        return cls(x, y, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    @classmethod
    def select(cls, x: Indexable, y: Indexable, parts: Sequence[Tensor]) -> Samples:
        """The rows `parts[i]` of a data set for each client i."""
        rows = torch.cat(list(parts))
        sizes = torch.tensor([0, *map(len, parts)])
        return cls(x[rows], y[rows], sizes.cumsum(0))

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"<Samples: {int(self.sizes.sum()):,} of {len(self):,} clients, {self.form}>"

    @property
    def form(self) -> str:
        """What a sample is like, in words; nothing of what is in any."""
        return " and ".join(map(str, sample_kinds(self.x)))

    @property
    def sizes(self) -> Tensor:
        """Samples of each client, [m]."""
        return self.offsets.diff()

    def client(self, i: int) -> tuple[Any, Any]:
        """Features and targets of client i, views."""
        begin, end = self.offsets[i].item(), self.offsets[i + 1].item()
        return self.x[begin:end], self.y[begin:end]

    def part(self, begin: int, end: int) -> Samples:
        """The samples of clients `begin` to `end`, to be sent elsewhere: not views."""
        offsets = self.offsets[begin : end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Samples(self.x[first:last].clone(), self.y[first:last].clone(), offsets - first)

    def of_clients(self, ids: Tensor) -> Samples:
        """The samples of clients `ids`, in this order."""
        sizes, begin = self.sizes[ids], self.offsets[ids]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        first = (begin - offsets[:-1]).repeat_interleave(sizes)
        rows = first + torch.arange(int(offsets[-1]))
        return Samples(self.x[rows], self.y[rows], offsets)

    def rows(self, ids: Tensor) -> Rows:
        """The samples of clients `ids` side by side, padded with zeros to the longest of them.

        Neighbours of equal size need no copy.
        """
        begin, size = self.offsets[ids], self.sizes[ids]
        longest = int(size.max())
        if bool((size == longest).all()) and bool((ids.diff() == 1).all()):
            first, clients = int(begin[0]), len(ids)
            x, y = (view_rows(part, first, clients, longest) for part in (self.x, self.y))
            return Rows(x, y, size)
        place = torch.arange(longest)
        inside = place < size[:, None]  # [c, n]
        index = torch.where(inside, begin[:, None] + place, 0)
        return Rows(place_rows(self.x, index, inside), place_rows(self.y, index, inside), size)

    @property
    def tensor_axes(self) -> int:
        """The axes of a sample that is one tensor with one target; 0 where it is not."""
        plain = isinstance(self.x, Tensor) and isinstance(self.y, Tensor) and self.y.dim() == 1
        return self.x.dim() - 1 if plain else 0

    @property
    def has_labels(self) -> bool:
        """Whether a target is one label."""
        one = isinstance(self.y, Tensor) and self.y.dim() == 1
        return one and not self.y.is_floating_point()

    @property
    def sample_numbers(self) -> int:
        """How many numbers a sample has; of sequences, on average."""
        return numbers_per_sample(self.x)


@dataclass(frozen=True)
class Federation:
    """The data of a federation: what clients train on, what they are tested on, what is known.

    By the validation part it is decided when training ends and which of several models is kept; in
    it a client that trains may have no samples. The test part belongs to the same clients, unless
    `unseen` says that it belongs to others, which never train and are served a model all the same.
    """

    train: Samples
    test: Samples | None = None
    validation: Samples | None = field(default=None, kw_only=True)  # of the clients that train
    cluster: Tensor | None = None  # [m] true clusters
    unseen: bool = False  # the test part belongs to other clients
    test_cluster: Tensor | None = None  # [test clients] their true clusters, if unseen
    truth: Tensor | None = None  # [groups, d] true parameters, for synthetic data
    noise: float | None = None  # standard deviation of the noise, for synthetic data
    sample_clusters: bool = False  # labels are the true clusters of samples, to score by
    labelled: bool = True  # samples have targets; else these are zeros, which nobody may learn
    name: str = "own data"
    clients: tuple[str, ...] = ()  # names of the clients, where they have any
    features: tuple[str, ...] = ()  # names of the features
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    class_count: int = 0  # classes that labels can be; 0: as many as the labels show
    scale: float = 1.0  # features are divided by it before a network sees them: 255 for bytes
    # [N] of the training samples: the last by time are held out, those of a group together
    time: Tensor | None = None
    group: Tensor | None = None
    schema: Schema | None = None  # how rows of a user's table become samples; None: they are none

    def __post_init__(self) -> None:
        if self.test is not None and not self.unseen and len(self.test) != len(self.train):
            raise DataError(
                f"{len(self.train)} clients train but {len(self.test)} are tested: "
                "give each client its own test part, or say `unseen=True`"
            )
        if self.validation is not None and len(self.validation) != len(self.train):
            raise DataError(
                f"{len(self.train)} clients train but {len(self.validation)} have a validation "
                "part: give each client its own, if without samples"
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
        validation: Sequence[tuple[Any, Any] | None] | None = None,
        cluster: Any = None,
        unseen: bool = False,
        test_cluster: Any = None,
        name: str = "own data",
    ) -> Federation:
        """A federation from (x, y) pairs, one for each client: arrays or tensors, as they are.

        x may also be a list of n sequences of their own lengths, or several inputs: a tuple, or a
        dictionary with their names. y may be a list of n sequences, or [n, c] probabilities of c
        classes. docs/samples.md has examples. Where y is None with all clients, samples have no
        targets and can only be clustered. A client without samples for the validation has None
        there in place of a pair.

        >>> import numpy as np
        >>> federation = Federation.from_clients(
        ...     [(np.zeros((5, 3)), np.array([0, 1, 0, 1, 0])), (np.ones((2, 3)), np.array([1, 1]))]
        ... )
        >>> len(federation), federation.train.sizes.tolist()
        (2, [5, 2])
        """
        parts = read_clients(clients)
        others = [
            None if test is None else read_clients(test),
            None if validation is None else read_held_out(validation, parts),
        ]
        known = [parts, *(each for each in others if each is not None)]
        sequences = sequence_parts(*known)
        train = Samples.store(parts, sequences)
        stored = [None if each is None else Samples.store(each, sequences) for each in others]
        numbers, test_numbers = number_clusters(cluster, test_cluster)
        labelled = have_targets([client for each in known for client in each])
        found = cls(train, stored[0], numbers, unseen, test_numbers, name=name, labelled=labelled)
        return replace(found, validation=stored[1])

    @staticmethod
    def from_table(
        source: Any,
        *,
        features: str | Sequence[str] = "",
        seed: int = 0,
        schema: Schema | None = None,
        **settings: Any,
    ) -> Federation:
        """A federation from a file, data frame, Arrow table or Hugging Face dataset.

        With the `schema` of another federation its rows become samples as they did there, all of
        them in the training part, be it of one client; there are no other settings then. The
        settings are those of `coterie describe table`: `client` and `label` name the columns
        that say whose row it is and what is to be predicted. Without a label, samples can only be
        clustered.

        >>> import pytest; pyarrow = pytest.importorskip("pyarrow")
        >>> rows = {"client": ["a", "a", "b", "b"], "label": [0, 1, 0, 1], "age": [30, 40, 50, 60]}
        >>> federation = Federation.from_table(pyarrow.table(rows), train_share=0.5)
        >>> len(federation), federation.train.x.shape
        (2, torch.Size([2, 1]))
        """
        from coterie.data.tables.table import Table

        if schema is not None:
            if settings or features or seed:
                raise SettingError(
                    "with `schema` there are no other settings: it says all, got "
                    f"{', '.join([*settings, *(['features'] if features else [])]) or 'seed'}"
                )
            from coterie.data.tables.known_schema import new_federation

            return new_federation(schema, source)
        columns = features if isinstance(features, str) else ",".join(features)
        return Table(features=columns, **settings).prepare(source, seed)

    @staticmethod
    def from_folder(path: str | Path, **settings: Any) -> Federation:
        """A federation from a folder with one `.npz`, `.csv` or `.parquet` file per client.

        The settings are those of `from_table`. `.npz` files hold arrays x and y, or x alone, which
        are taken as they are; then `label`, `features`, `categories` and `standardise` do nothing.
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
        return prepare_arrays(read_datasets(datasets), settings, seed, "own data")

    def __len__(self) -> int:
        """The number of clients that train."""
        return len(self.train)

    def __repr__(self) -> str:
        """What it is, without a row of anybody."""
        counts = [f"{int(self.train.sizes.sum()):,} training"]
        counts += [] if self.test is None else [f"{int(self.test.sizes.sum()):,} test"]
        known = [
            f"{len(self):,} clients",
            f"{' and '.join(counts)} samples",
            self.train.form,
            f"{self.outputs} classes" if self.labelled and self.outputs > 1 else "",
            "" if self.cluster is None else f"{len(self.cluster.unique())} true clusters",
        ]
        return f"<Federation {self.name}: {', '.join(filter(None, known))}>"

    @property
    def parts(self) -> dict[str, Samples]:
        """The parts that there are, by name: `train`, `test` and `validation`."""
        every = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in every.items() if part is not None}

    @property
    def outputs(self) -> int:
        """The outputs that a network needs: one for each class, or one for real targets."""
        targets = [stored_tensors(part.y)[0] for part in self.parts.values() if len(part.y)]
        if targets[0].is_floating_point():
            return 1 if targets[0].dim() == 1 else targets[0].shape[-1]
        return self.class_count or max(int(values.max()) for values in targets) + 1


def number_clusters(*clusters: Any) -> list[Tensor | None]:
    """True clusters of whatever names, numbered from 0 alike for training and test clients."""
    given = [np.asarray(names).ravel() for names in clusters if names is not None]
    if not given:
        return [None] * len(clusters)
    numbers = torch.from_numpy(np.unique(np.concatenate(given), return_inverse=True)[1])
    parts = iter(numbers.split([len(names) for names in given]))
    return [None if names is None else next(parts) for names in clusters]


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
