"""Which rows each client trains on and is tested on: by chance, column, file, group or time.

However it is done, every client is split by itself, and what chance decides goes by its name, so
that it is the same wherever the client is.

    chance   `train_share` of a client's rows are trained on. Classes, and ranges of real targets,
             have their share in both parts to within one row, unless `stratify` is false.
    split    the column says of each row train, validation or test.
    test     rows of this file are tested on, all others trained on.
    group    rows that have the same value in this column are all in one part.
    time     the last rows by this column are tested on.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core import seeds
from coterie.core.errors import CoterieWarning, DataError
from coterie.data.client_orders import ClientDraws
from coterie.data.federation import split_cut
from coterie.data.tables.client_rows import ClientRows, Rows, offsets_of
from coterie.data.tables.columns import Column
from coterie.data.tables.quality import value_codes

TRAIN, VALIDATION, TEST = 0, 1, 2
PARTS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}


class Split(NamedTuple):
    """The rows of each part; clients without rows to train on are in none."""

    train: ClientRows
    test: ClientRows
    validation: ClientRows | None = None  # None: no part is named so
    order: NDArray[np.float64] | None = None  # [training rows] time: the last are held out first
    group: Rows | None = None  # [training rows] rows of one group are held out together


class SplitBy(NamedTuple):
    """What decides the part of a row."""

    share: float  # of a client's rows that it trains on
    seed: int
    key: NDArray[Any] | None = None  # [n] targets of all rows, to stratify by; None: not
    part: NDArray[np.int64] | None = None  # [n] the part of each row, if that is known
    group: Column | None = None
    time: Column | None = None


def split_clients(clients: ClientRows, by: SplitBy) -> Split:
    """Every client's rows in parts, one row at least to train on."""
    if by.key is None and by.part is None and by.group is None and by.time is None:
        return split_at_random(clients, by.share, by.seed)
    group = None if by.group is None else value_codes(check_complete(by.group, "group"))[0]
    time = None if by.time is None else check_complete(by.time, "time").values.astype(np.float64)
    if by.part is not None:
        part = by.part[clients.rows]
    elif group is None and time is None:
        assert by.key is not None
        part = stratified_parts(clients, by.key[clients.rows], by.share, by.seed)
    else:
        part = np.empty(len(clients.rows), np.int64)
        bounds = zip(clients.names, clients.offsets[:-1], clients.offsets[1:], strict=True)
        for name, begin, end in bounds:
            rows = clients.rows[begin:end]
            if group is not None:
                part[begin:end] = grouped_parts(group[rows], by.share, by.seed, name)
            elif time is not None:
                part[begin:end] = latest_parts(time[rows], by.share)
    clients, part = with_training_rows(clients, part)
    train = clients.chosen(part == TRAIN)
    held = clients.chosen(part == VALIDATION) if bool((part == VALIDATION).any()) else None
    return Split(
        train,
        clients.chosen(part == TEST),
        held,
        None if time is None else time[train.rows],
        None if group is None else group[train.rows],
    )


def split_at_random(clients: ClientRows, share: float, seed: int) -> Split:
    """Every client's rows split at random, `share` of them to train on, at least one each way."""
    sizes = np.diff(clients.offsets)
    draws = ClientDraws(sizes, clients.names, seed)
    rows = clients.rows[draws.sorted(draws.orders("split")[0], None)]
    cuts = split_cuts(sizes, share)
    trained = places_within(sizes) < np.repeat(cuts, sizes)
    train = ClientRows(clients.names, rows[trained], offsets_of(cuts))
    return Split(train, ClientRows(clients.names, rows[~trained], offsets_of(sizes - cuts)))


def stratified_parts(
    clients: ClientRows, key: NDArray[Any], share: float, seed: int
) -> NDArray[np.int64]:
    """The parts of clients' rows by chance, in each evenly over them in the order of `key` [n]."""
    sizes = np.diff(clients.offsets)
    draws = ClientDraws(sizes, clients.names, seed)
    order = draws.sorted(draws.orders("split")[0], key)
    tested = sizes - split_cuts(sizes, share)
    start = draws.starts("strata").numpy()
    step = np.divide(sizes, tested, where=tested > 0, out=np.ones(len(sizes)))
    owner = np.repeat(np.arange(len(sizes)), tested)
    places = np.floor((places_within(tested) + start[owner]) * step[owner]).astype(np.int64)
    part = np.full(len(key), TRAIN)
    part[order[draws.begin[owner] + places]] = TEST
    return part


def split_cuts(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many of the rows [m] of each client are trained on, as `split_cut` says of one."""
    cuts: NDArray[np.int64] = np.minimum(np.maximum((sizes * share).astype(np.int64), 1), sizes - 1)
    return cuts


def places_within(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of every row within its client, from 0, [n]."""
    begin = np.cumsum(sizes) - sizes
    places: NDArray[np.int64] = np.arange(int(sizes.sum())) - np.repeat(begin, sizes)
    return places


def grouped_parts(group: Rows, share: float, seed: int, name: str) -> NDArray[np.int64]:
    """The parts of a client's rows by their groups [n], about `share` of them to train on.

    A client whose rows are all of one group trains on them.
    """
    kinds, place, sizes = np.unique(group, return_inverse=True, return_counts=True)
    order = torch.randperm(len(kinds), generator=seeds.generator(seed, "groups", name)).numpy()
    wanted = len(group) - split_cut(len(group), share)
    tested = np.zeros(len(kinds), bool)
    tested[order] = sizes[order].cumsum() - sizes[order] / 2 <= wanted
    if not tested.any() and len(kinds) > 1:
        tested[sizes.argmin()] = True
    if tested.all():
        tested[sizes.argmax()] = False
    return np.where(tested[place], TEST, TRAIN)


def latest_parts(time: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """The parts of a client's rows by time [n]: the last are tested on."""
    part = np.full(len(time), TRAIN)
    part[np.argsort(time, kind="stable")[split_cut(len(time), share) :]] = TEST
    return part


def named_parts(column: Column) -> NDArray[np.int64]:
    """The part of each row by a column that says train, validation or test."""
    words = [category.strip().lower() for category in column.categories]
    odd = [word for word in words if word not in PARTS]
    if column.kind != "text" or odd:
        got = odd[0] if odd else "numbers"
        raise DataError(
            f"the column `{column.name}` must say train, validation or test of each row, got {got}"
        )
    codes = np.array([PARTS[word] for word in words], np.int64)
    parts: NDArray[np.int64] = codes[check_complete(column, "split").values]
    return parts


def check_complete(column: Column, setting: str) -> Column:
    """Refuse a column that decides the parts and has missing values."""
    gone = int(column.missing.sum())
    if gone:
        raise DataError(
            f"the column `{column.name}` must have no missing values to be `{setting}`, got "
            f"{gone:,} in {len(column.values):,} rows"
        )
    return column


def with_training_rows(
    clients: ClientRows, part: NDArray[np.int64]
) -> tuple[ClientRows, NDArray[np.int64]]:
    """The clients that have rows to train on, and the parts of their rows; others are a warning."""
    sizes = np.diff(clients.offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    trained = np.bincount(owner[part == TRAIN], minlength=len(sizes)) > 0
    out = int((~trained).sum())
    if not out:
        return clients, part
    if not trained.any():
        raise DataError("a federation needs rows to train on, but all rows are in other parts")
    warnings.warn(
        f"{out:,} of {len(sizes):,} clients are left out, with {sizes[~trained].sum():,} rows in "
        "all: they have no rows to train on",
        CoterieWarning,
        stacklevel=2,
    )
    stay = trained[owner]
    names = tuple(name for name, keep in zip(clients.names, trained.tolist(), strict=True) if keep)
    return ClientRows(names, clients.rows[stay], offsets_of(sizes[trained])), part[stay]
