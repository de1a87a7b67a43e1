"""Synthetic classification federations of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.core import seeds
from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least, at_least_as_many, between
from coterie.data.federation import Federation, Samples, split_cut, split_order

FEATURES, CLASSES = 60, 10
PIECE = 16_384  # rows that are drawn at once, so that a client of half a million takes no room

DrawnRows = Iterator[tuple[int, np.ndarray, np.ndarray]]  # client, features [n, 60], labels [n]


@dataclass(frozen=True, kw_only=True)
class FpfcSynthetic(Settings):
    """The synthetic setting of the FPFC paper: each cluster has its own linear classifier.

    mu_c ~ N(0, 1); W_c ~ N(mu_c, 1), b_c ~ N(mu_c, 1); x ~ U[0, 1)^60;
    y = argmax(W_c x + b_c + N(0, 0.5^2)); n_i = 5 (int(lognormal(4, 2)) + 50): heavy-tailed.
    """

    clients: int = setting(100, "clients m, as many in each cluster", at_least(1))
    groups: int = setting(4, "true clusters", at_least(1))
    most: int = setting(3000, "samples of a client at most, with test; 0: no limit", at_least(0))
    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    class_count: ClassVar[int] = CLASSES
    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = dict(k=4, lr=0.1, steps=10, fraction=0.3, network="linear")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_as_many(self, "clients", "groups")

    def build(self, seed: int) -> Federation:
        rng = np.random.default_rng(seeds.derive(seed, "fpfc-synthetic"))
        sizes = heavy_tailed_sizes(rng, self.clients, self.most, times=5)
        cluster = np.arange(self.clients) * self.groups // self.clients
        mean = rng.normal(size=self.groups)
        weight = rng.normal(mean[:, None, None], 1, (self.groups, CLASSES, FEATURES))
        bias = rng.normal(mean[:, None], 1, (self.groups, CLASSES))

        def drawn() -> DrawnRows:
            for i, c in enumerate(cluster):
                for n in piece_sizes(sizes[i]):
                    features = rng.random((n, FEATURES), dtype=np.float32)
                    noise = rng.normal(0, 0.5, (n, CLASSES))
                    yield i, features, (features @ weight[c].T + bias[c] + noise).argmax(1)

        train, test = write_samples(sizes, drawn(), self.train_share, seed)
        clusters = torch.from_numpy(cluster)
        return Federation(train, test, clusters, name="fpfc-synthetic", class_count=CLASSES)


@dataclass(frozen=True, kw_only=True)
class LeafSynthetic(Settings):
    """Synthetic(alpha, beta) of LEAF and FedProx: every client has a classifier of its own.

    u_k ~ N(0, alpha), W_k, b_k ~ N(u_k, 1); B_k ~ N(0, beta), v_k ~ N(B_k, 1)^60,
    x ~ N(v_k, diag(j^-1.2)); y = argmax(W_k x + b_k); n_k = int(lognormal(4, 2)) + 50.
    Alpha spreads the classifiers, beta the features. There are no true clusters.
    """

    clients: int = setting(30, "clients m", at_least(1))
    spread_models: float = setting(1.0, "alpha: how much clients' classifiers differ", at_least(0))
    spread_features: float = setting(1.0, "beta: how much clients' features differ", at_least(0))
    most: int = setting(3000, "samples of a client at most, with test; 0: no limit", at_least(0))
    train_share: float = setting(0.8, "share of a client's samples to train on", between(0, 1))

    class_count: ClassVar[int] = CLASSES
    pixel_scale: ClassVar[float] = 1.0
    suggests: ClassVar[dict[str, Any]] = dict(
        lr=0.01, epochs=1, batch=10, fraction=0.3, network="linear"
    )

    def build(self, seed: int) -> Federation:
        rng = np.random.default_rng(seeds.derive(seed, "leaf-synthetic"))
        sizes = heavy_tailed_sizes(rng, self.clients, self.most)
        deviation = np.arange(1, FEATURES + 1) ** -0.6  # the root of j^-1.2

        def drawn() -> DrawnRows:
            for i, size in enumerate(sizes):
                u = rng.normal(0, self.spread_models**0.5)
                weight, bias = rng.normal(u, 1, (CLASSES, FEATURES)), rng.normal(u, 1, CLASSES)
                centre = rng.normal(rng.normal(0, self.spread_features**0.5), 1, FEATURES)
                for n in piece_sizes(size):
                    noise = rng.normal(size=(n, FEATURES))
                    features = (centre + deviation * noise).astype(np.float32)
                    yield i, features, (features @ weight.T + bias).argmax(1)

        train, test = write_samples(sizes, drawn(), self.train_share, seed)
        return Federation(train, test, name="leaf-synthetic", class_count=CLASSES)


def heavy_tailed_sizes(
    rng: np.random.Generator, clients: int, most: int, times: int = 1
) -> np.ndarray:
    """`times` (int(lognormal(4, 2)) + 50) for each client, but at most `most`; 0: no limit."""
    sizes = times * (rng.lognormal(4, 2, clients).astype(int) + 50)
    return np.minimum(sizes, most) if most else sizes


def piece_sizes(size: int) -> list[int]:
    """A client's rows in pieces that are drawn one after another.

    >>> piece_sizes(40_000)
    [16384, 16384, 7232]
    """
    return [min(PIECE, size - begin) for begin in range(0, size, PIECE)]


def write_samples(
    sizes: np.ndarray, drawn: DrawnRows, share: float, seed: int
) -> tuple[Samples, Samples]:
    """What clients draw, piece by piece, written to its place in the training or the test part.

    The split is that of `split_parts`; nothing is held twice but the piece at hand.
    """
    cuts = np.array([split_cut(size, share) for size in sizes.tolist()])
    train, test = empty_samples(cuts), empty_samples(sizes - cuts)
    last, done = -1, 0
    for i, features, labels in drawn:
        if i != last:
            last, done = i, 0
            place = split_order(int(sizes[i]), seed, i).argsort()  # of each row, training first
        where = place[done : done + len(labels)]
        done += len(labels)
        trained = where < cuts[i]
        x, y = torch.from_numpy(features), torch.from_numpy(labels)
        for part, mine, shift in ((train, trained, 0), (test, ~trained, int(cuts[i]))):
            rows = part.offsets[i] + where[mine] - shift
            part.x[rows], part.y[rows] = x[mine], y[mine]
    return train, test


def empty_samples(sizes: np.ndarray) -> Samples:
    """Room for the samples of clients of these sizes."""
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
    rows = int(offsets[-1])
    return Samples(torch.empty(rows, FEATURES), torch.empty(rows, dtype=torch.long), offsets)
