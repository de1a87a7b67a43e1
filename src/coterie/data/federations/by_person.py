"""Federations of people: each client holds what one person wrote, or photographs of one face.

Their clusters are natural. For MNIST one is documented: digits of NIST's series 0 were written by
census employees, those of series 4 by high-school students.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, setting
from coterie.core.validate import above, at_least, between, one_of
from coterie.data import partition, sources
from coterie.data.federation import Federation, select_federation, split_parts


@dataclass(frozen=True, kw_only=True)
class MnistWriters(Settings):
    """MNIST's training digits by the 539 people who wrote them; the true cluster is their group."""

    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    class_count: ClassVar[int] = 10
    pixel_scale: ClassVar[float] = 255
    suggests: ClassVar[dict[str, Any]] = dict(
        k=2, lr=0.1, epochs=1, batch=10, rounds=50, network="mlp", hidden=200
    )

    def build(self, seed: int) -> Federation:
        images, labels = sources.load_mnist("train")
        writer, series = sources.load_mnist_writers("train")
        parts = rows_by_owner(writer)
        group = torch.tensor([int(series[rows[0]]) for rows in parts])
        cluster = (group != group.min()).long()  # series 0 and series 4
        return select_federation(
            self,
            images,
            labels,
            *split_parts(parts, self.train_share, seed),
            cluster=cluster,
            name="mnist-writers",
            clients=tuple(str(int(writer[rows[0]])) for rows in parts),
        )


@dataclass(frozen=True, kw_only=True)
class Femnist(Settings):
    """Handwritten digits and letters by writer, 62 classes, from LEAF; no true clusters known."""

    train_share: float = setting(0.8, "share of a writer's images to train on; 0: the files' own")
    fewest: int = setting(2, "writers with fewer images are left out", at_least(2))
    split: str = setting(
        "writers",
        "who holds which images; iid, dirichlet: as many clients that are no writers",
        one_of("writers", "iid", "dirichlet"),
        added=True,
    )
    alpha: float = setting(
        0.5, "Dirichlet concentration; small: clients differ much", above(0), added=True
    )

    class_count: ClassVar[int] = 62
    pixel_scale: ClassVar[float] = 255
    suggests: ClassVar[dict[str, Any]] = dict(
        k=2,
        lr=0.004,
        epochs=1,
        batch=10,
        fraction=0.1,
        rounds=100,
        start="warm",
        network="cnn",
        hidden=2048,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_share or self.split != "writers":
            between(0, 1)(self, "train_share")

    def build(self, seed: int) -> Federation:
        data = sources.load_femnist()
        parts = [rows for rows in rows_by_owner(data.writer) if len(rows) >= self.fewest]
        if self.split != "writers":
            everything, count = torch.cat(parts), len(parts)
            labels, generator = data.labels[everything], seeds.generator(seed, "deal")
            if self.split == "iid":
                dealt = partition.iid(labels, count, generator)
            else:
                dealt = partition.dirichlet(labels, count, self.alpha, generator)
            split = split_parts([everything[rows] for rows in dealt], self.train_share, seed)
            return select_federation(self, data.images, data.labels, *split, name="femnist")
        if self.train_share:
            train, test = split_parts(parts, self.train_share, seed)
        elif data.split is None:
            raise SettingError("these FEMNIST files have no split of their own; set train_share")
        else:
            halves = [(rows[data.split[rows] == 0], rows[data.split[rows] == 1]) for rows in parts]
            halves = [(one, two) for one, two in halves if len(one) and len(two)]
            train, test = [one for one, _ in halves], [two for _, two in halves]
        names = tuple(data.writers[data.writer[rows[0]]] for rows in train)
        return select_federation(
            self, data.images, data.labels, train, test, name="femnist", clients=names
        )


@dataclass(frozen=True, kw_only=True)
class Celeba(Settings):
    """Celebrity photographs by person: does the person smile? From LEAF; no true clusters known."""

    train_share: float = setting(0.8, "share of a person's images to train on", between(0, 1))
    fewest: int = setting(5, "people with fewer images are left out, as LEAF does", at_least(2))
    people: int = setting(0, "people that take part, in order of their number; 0: all", at_least(0))

    class_count: ClassVar[int] = 2
    pixel_scale: ClassVar[float] = 255
    suggests: ClassVar[dict[str, Any]] = dict(
        k=2,
        lr=0.1,
        epochs=10,
        batch=10,
        fraction=0.1,
        rounds=100,
        start="warm",
        network="celeba-cnn",
    )

    def build(self, seed: int) -> Federation:
        data = sources.load_celeba()
        parts = [rows for rows in rows_by_owner(data.person) if len(rows) >= self.fewest]
        parts = parts[: self.people or None]
        if not parts:
            raise SettingError(f"nobody in CelebA's files has {self.fewest} images")
        train, test = split_parts(parts, self.train_share, seed)
        names = tuple(data.people[data.person[rows[0]]] for rows in parts)
        return select_federation(
            self, data.images, data.smiling, train, test, name="celeba", clients=names
        )


def rows_by_owner(owner: Tensor) -> list[Tensor]:
    """The rows of each owner, owners in increasing order.

    >>> [rows.tolist() for rows in rows_by_owner(torch.tensor([7, 3, 7]))]
    [[1], [0, 2]]
    """
    order = owner.argsort(stable=True)
    _, counts = owner[order].unique_consecutive(return_counts=True)
    return list(order.split(counts.tolist()))
