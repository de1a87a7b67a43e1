"""Runs as pandas frames; pandas is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.experiment.folder import Record

COSTS = ("seconds", "asked", "answered", "scored", "bytes_down", "bytes_up")


def import_pandas() -> Any:
    """The pandas library, which takes a while to import."""
    import pandas

    return pandas


def history_frame(records: Sequence[Record]) -> Any:
    """A row for each round, by its number: the metrics, missing where it was not evaluated.

    Behind them stand its seconds, the clients that were asked, answered and were scored, and bytes.
    """
    pandas = import_pandas()
    metrics = list(dict.fromkeys(name for record in records for name in record["metrics"]))
    rounds = pandas.Index([record["round"] for record in records], name="round", dtype="int64")
    columns = {
        name: pandas.Series([r["metrics"].get(name) for r in records], rounds, dtype="float64")
        for name in metrics
    }
    for name in COSTS:
        values = [record.get(name) for record in records]
        kind = "float64" if name == "seconds" else "Int64"
        columns[name] = pandas.Series(values, rounds, dtype=kind)
    return pandas.DataFrame(columns, index=rounds)


def clients_frame(columns: dict[str, Any]) -> Any:
    """A row for each client, by its id, from the columns of a table of clients.

    Columns that the table does not have are left out; what is unknown of a client is missing.
    """
    pandas = import_pandas()
    ids = pandas.Index(columns["client"], name="client", dtype="int64")
    kinds = {
        "name": "object",
        "model": "object",
        "samples": "int64",
        "cluster": "Int64",
        "true": "Int64",
        "attacker": "bool",
        "shares": "object",  # a list for each client
    }
    return pandas.DataFrame(
        {
            name: pandas.Series(values, ids, dtype=kinds.get(name, "float64"))
            for name, values in columns.items()
            if name != "client" and values is not None
        },
        index=ids,
    )
