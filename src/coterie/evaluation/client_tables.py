"""Tables of clients, as columns: those that trained, and unseen ones if any.

Every client has its row; what is not known of it is None.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.data.federation import Federation
from coterie.evaluation.personal import PersonalModels
from coterie.evaluation.scoring import Evaluation, SampleClusters, Scorer


def client_tables(
    federation: Federation,
    scorer: Scorer,
    serving: Serving,
    trained: Evaluation,
    evaluation: Evaluation,
    placed: tuple[str, Tensor],
) -> dict[str, Any]:
    """The tables of clients whose places on the map are known, [m, 2], and what it is drawn from.

    They are `trained` on one part of the data, and the `evaluation` is by the run's protocol.
    """
    what, points = placed
    count, tested = len(federation), evaluation.summary.clients
    sizes, names = scorer.sizes("train"), federation.clients
    clients = client_columns(serving, 0, sizes, federation.cluster, names)
    losses = trained.summary.clients.get("loss", torch.zeros(0))
    clients["loss"] = fill_column(trained.serving.ids, losses, count)
    for name, values in zip("xy", points.T.tolist(), strict=True):
        clients[name] = [None if math.isnan(value) else value for value in values]
    clients["accuracy"] = None
    unseen = None
    if federation.unseen and evaluation.serving.adapt is None:
        sizes, true = scorer.sizes("test"), federation.test_cluster
        unseen = client_columns(evaluation.serving, count, sizes, true)
        rows = evaluation.serving.ids - count
        unseen["accuracy"] = fill_column(rows, tested.get("accuracy"), len(sizes))
        unseen["loss"] = fill_column(rows, tested.get("loss", torch.zeros(0)), len(sizes))
    elif scorer.tested:
        ids, accuracy = evaluation.serving.ids, tested.get("accuracy")
        beside = evaluation.attackers
        if beside is not None and accuracy is not None:
            ids = torch.cat([ids, beside.serving.ids])
            theirs = beside.summary.clients.get("accuracy", accuracy[:0])
            accuracy = torch.cat([accuracy, theirs])
        clients["accuracy"] = fill_column(ids, accuracy, count)
    tables = {"map": what, "clients": clients, "test_clients": unseen}
    if evaluation.samples is not None:
        k = len(evaluation.serving.models)
        tables["sample_clusters"] = sample_cluster_table(federation, evaluation.samples, k)
    return tables


def nobodys_tables(federation: Federation, scorer: Scorer, serving: Serving) -> dict[str, Any]:
    """The clients that trained, of whom the server knows no more than how many samples."""
    sizes, names = scorer.sizes("train"), federation.clients
    nobody = serving.for_clients(torch.zeros_like(serving.ids, dtype=torch.bool))
    clients = client_columns(nobody, 0, sizes, federation.cluster, names)
    clients |= dict.fromkeys(("loss", "x", "y", "accuracy"))
    return {"map": "", "clients": clients, "test_clients": None}


def sample_cluster_table(federation: Federation, samples: SampleClusters, k: int) -> dict[str, Any]:
    """The k clusters of the samples that were scored, as columns."""
    owner = torch.repeat_interleave(torch.arange(len(samples.sizes)), samples.sizes)
    table: dict[str, Any] = {
        "cluster": list(range(k)),
        "samples": torch.bincount(samples.found, minlength=k).tolist(),
        "clients": [len(owner[samples.found == j].unique()) for j in range(k)],
        "loss": None if samples.losses is None else known_values(samples.losses),
        "true": None,
        "overlaps": None,
    }
    if federation.sample_clusters:
        true, place = samples.true.unique(return_inverse=True)
        pairs = torch.bincount(samples.found * len(true) + place, minlength=k * len(true))
        names = federation.classes
        table["true"] = [names[t] if names else t for t in true.tolist()]
        table["overlaps"] = pairs.view(k, -1).tolist()
    return table


def client_columns(
    serving: Serving, first: int, sizes: Tensor, true: Tensor | None, names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The columns that every table of clients has.

    It has a row for each of the clients with `sizes` [m], whose ids begin with `first`.
    """
    count, known = len(sizes), serving.cluster >= 0
    return {
        "client": list(range(first, first + count)),
        "name": list(names) if names else None,
        "samples": sizes.tolist(),
        "cluster": fill_column((serving.ids - first)[known], serving.cluster[known], count),
        "shares": fill_column(serving.ids - first, serving.mixture, count),
        "true": None if true is None else true.tolist(),
    }


def personal_columns(
    personal: PersonalModels, untuned: list[Any] | None, count: int
) -> dict[str, Any]:
    """The columns of clients that fine-tune their models; `untuned` was the accuracy before."""
    if personal.moved is None or personal.uses_own is None:
        return {}
    ids = personal.serving.ids
    uses_own = fill_column(ids, personal.uses_own, count) or []
    accuracy = fill_column(ids, personal.summary.clients.get("accuracy"), count)
    if accuracy is not None and untuned is not None:  # attackers do not fine-tune
        pairs = zip(accuracy, untuned, strict=True)
        accuracy = [before if after is None else after for after, before in pairs]
    columns = {
        "accuracy": accuracy,
        "untuned_accuracy": untuned,
        "moved": fill_column(ids, personal.moved, count),
        "model": [None if own is None else ("own" if own else "shared") for own in uses_own],
    }
    if personal.places is not None:
        known = personal.places.isfinite().all(1)
        for name, values in zip(("tuned_x", "tuned_y"), personal.places.T, strict=True):
            columns[name] = fill_column(ids[known], values[known], count)
    return columns


def known_values(values: Tensor) -> list[float | None]:
    """Values [k] with six decimals, None where one is not a number.

    >>> known_values(torch.tensor([0.25, torch.nan]))
    [0.25, None]
    """
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]


def fill_column(rows: Tensor, values: Tensor | None, count: int) -> list[Any] | None:
    """A column of `count` values: those at `rows` [a] are given [a], all others are None.

    There is no column if there are no values, as of the accuracy where nothing is classified.

    >>> fill_column(torch.tensor([0, 2]), torch.tensor([5, 7]), 3)
    [5, None, 7]
    """
    if values is None:
        return None
    column: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values.tolist(), strict=True):
        column[row] = value
    return column
