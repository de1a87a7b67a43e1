"""A schema out of what nodes say of their tables (table_sums.py): that of the tables together.

It is the schema that one table with the rows of all nodes would give, to rounding, where nodes name
all categories. Where a node may not name some, these share the feature of rare ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.data.tables.columns import Column, sort_key
from coterie.data.tables.encoding import Encoder, OneHot, fit_number, fit_one_hot, unit_of
from coterie.data.tables.labels import AS_THEY_ARE, MANY, TargetScale, are_codes
from coterie.data.tables.schema import Schema
from coterie.data.tables.statistics import Moments, moments_about
from coterie.data.tables.table import MOST_CURVED, Table
from coterie.data.tables.table_sums import Answer

Ask = Callable[[str, Answer], Sequence[Answer]]  # a question, put to all nodes


def learn_joint_schema(settings: Table, ask: Ask) -> Schema:
    """Ask nodes until the schema is known: the answers to each question come in one order."""
    replies = ask("columns", {})
    target, classes = joint_target(settings, [reply["label"] for reply in replies])
    columns = joint_columns([reply["columns"] for reply in replies])
    asked: Answer = {"target": target, "classes": list(classes), "columns": columns}
    sums = ask("sums", asked)
    sizes = [size for reply in sums for size in reply["sizes"]]
    totals = {
        name: add_up(reply["numbers"][name] for reply in sums)
        for name, kind in columns
        if kind != "text"
    }
    means = {name: total / known for name, (known, total) in totals.items() if known}
    asked["means"] = means
    if target == "regression":
        known, total = add_up(reply["target"] for reply in sums)
        asked["target_mean"] = total / known
    spread = ask("spread", asked)
    encoders: list[Encoder] = []
    for name, kind in columns:
        found: Encoder | str
        if kind == "text":
            found = fit_words(name, [reply["texts"][name] for reply in sums], settings.categories)
        else:
            told = Moments(0.0, 0.0, 0.0)
            if name in means:
                far = add_up(reply["numbers"][name] for reply in spread)
                told = moments_about(totals[name][0], means[name], *far)
            found = fit_number(name, told, sum(sizes), kind == "date", settings.standardise)
        if not isinstance(found, str):
            encoders.append(found)
    if not encoders:
        raise DataError("the tables of the nodes have no column that tells rows apart")
    schema = Schema(
        tuple(encoders),
        classes,
        (sum(len(encoder.names) for encoder in encoders),),
        bool(target),
        client=settings.client,
        label=settings.label,
        target=AS_THEY_ARE,
        rows=int(np.median(sizes)),
        missing=settings.missing_words,
        class_counts=tuple(map(int, add_up(reply["classes"] for reply in sums))) if classes else (),
    )
    if target == "regression" and settings.scale_target:
        moments = moments_about(known, asked["target_mean"], *add_up(r["target"] for r in spread))
        scale = 1.0 if moments.constant else moments.deviation
        schema = replace(schema, target=TargetScale(moments.mean, scale))
    if not settings.standardise:
        return schema
    most = MOST_CURVED["regression" if target == "regression" else "classification"]
    largest = max(reply["largest"] for reply in ask("unit", {**asked, "schema": schema.raw()}))
    unit = unit_of(largest, most)
    return replace(schema, encoders=tuple(replace(each, unit=unit) for each in encoders))


def add_up(rows: Any) -> list[float]:
    """The sums of rows of numbers, place by place.

    >>> add_up([[1, 2], [3, 4]])
    [4.0, 6.0]
    """
    return [float(sum(column)) for column in zip(*rows, strict=True)]


def joint_columns(tables: Sequence[list[list[str]]]) -> list[list[str]]:
    """The columns that all nodes have, each with its kind; their order is that of most nodes.

    >>> joint_columns([[["a", "number"], ["b", "text"]], [["b", ""], ["a", "text"]]])
    [['a', 'text'], ['b', 'text']]
    """
    orders = Counter(tuple(name for name, _ in table) for table in tables)
    most = max(orders.values())
    order = min(names for names, count in orders.items() if count == most)
    found = []
    for name in order:
        kinds = {kind for table in tables for other, kind in table if other == name} - {""}
        if all(any(other == name for other, _ in table) for table in tables):
            if kinds == {"date", "number"}:
                raise DataError(
                    f"the column `{name}` holds dates on some nodes and numbers on others"
                )
            kind = "text" if "text" in kinds else (min(kinds) if kinds else "number")
            found.append([name, kind])
    if not found:
        raise DataError("the tables of the nodes have no column of features in common")
    return found


def joint_target(settings: Table, labels: Sequence[Answer | None]) -> tuple[str, tuple[str, ...]]:
    """What the label of all nodes is, `` where there is none, and the names of its classes."""
    known = [label for label in labels if label is not None]
    if not known:
        return "", ()
    if len(known) < len(labels):
        raise DataError(f"some nodes have no label column `{settings.label}`, others do")
    kinds = {label["kind"] for label in known}
    counts: Counter[str] = Counter()
    for label in known:
        counts.update(label.get("counts", {}))
    target = settings.target
    if target == "auto":
        target = "classification"
        if "number" in kinds and not kinds & {"text", "bool"}:
            target = "regression"
        elif kinds == {"whole"}:
            target = target_of_whole(settings.label, known, counts)
    if target == "regression":
        return target, ()
    if len(counts) < 2:
        raise DataError(
            f"classification needs two classes or more in the column `{settings.label}` that nodes "
            f"may name, got {', '.join(counts) or 'none'}"
        )
    names = tuple(counts)
    return target, tuple(names[i] for i in sorted(range(len(names)), key=sort_key(names)))


def target_of_whole(name: str, labels: Sequence[Answer], counts: Counter[str]) -> str:
    """Whether whole numbers are classes or amounts, as far as nodes may say which there are."""
    if any(label["distinct"] > MANY for label in labels) or len(counts) > MANY:
        return "regression"
    if any(label["rest"] for label in labels):
        raise DataError(
            f"the label column `{name}` holds whole numbers that too few rows of a node have to be "
            "named: say target=classification or target=regression"
        )
    values = np.repeat([int(value) for value in counts], list(counts.values()))
    return "classification" if are_codes(values) else "regression"


def fit_words(name: str, told: Sequence[Answer], categories: int) -> OneHot | str:
    """How to write a column of categories, by how many rows of the nodes have each."""
    counts: Counter[str] = Counter()
    for each in told:
        counts.update(each["counts"])
    missing, rest = (sum(each[key] for each in told) for key in ("missing", "rest"))
    if not rest:
        column = Column(name, "text", np.array([], np.int64), tuple(counts))
        return fit_one_hot(column, np.array([*counts.values(), missing], np.int64), categories)
    if not counts:
        return OneHot(name, (), False, True) if missing else "names that few rows have"
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return OneHot(name, tuple(sorted(order[:categories])), True, missing > 0)
