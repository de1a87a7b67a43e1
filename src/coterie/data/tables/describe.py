"""What `coterie data describe` says about a table before anything is trained on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.sample_kinds import sample_kinds
from coterie.data.federation import Federation
from coterie.data.tables import quality
from coterie.data.tables.arrays import Arrays, read_npz
from coterie.data.tables.client_rows import ClientRows, group_rows, offsets_of
from coterie.data.tables.columns import LARGEST, Column, as_text, client_column, read_column
from coterie.data.tables.labels import Labels, read_labels, target_doubts, whole_if_gaps
from coterie.data.tables.read import existing_path, source_name
from coterie.data.tables.statistics import category_counts, column_moments, total_counts
from coterie.data.tables.table import Table, is_array_folder

BAR = 30  # widest bar of a histogram
SHOWN = 10  # classes that are listed
WIDEST = 28  # letters of a name that are shown


def describe_source(settings: Table, source: Any = None) -> str:
    """Clients, labels and features of a table, and what looks wrong with them, as text.

    Takes the source that `Table.prepare` takes, or what `path` names, and looks at all rows. What
    no federation could be made of is refused with the same sentences.
    """
    source = settings.path if source is None else source
    if is_array_folder(source):
        return describe_arrays(read_npz(existing_path(source)), settings, source_name(source))
    return describe_table(settings.read(source), settings, source_name(source))


def describe_arrays(arrays: Arrays, settings: Table, name: str) -> str:
    """The description of a folder of arrays, whose features have no names."""
    clients = arrays.clients
    shape = " x ".join(map(str, arrays.x.shape[1:]))
    kind = str(arrays.x.dtype).removeprefix("torch.")
    problems = quality.size_problems(clients, settings.min_samples)
    lines = [headline(name, clients, f"samples of {shape} {kind}"), *size_lines(clients)]
    told, wrong = describe_label(arrays.label, settings, clients, scaled=False)
    return format_page(lines + told, problems + wrong)


def describe_table(table: Any, settings: Table, name: str) -> str:
    """The description of an Arrow table."""
    owner = client_column(table, settings.client)
    clients = group_rows(owner)
    label = None
    if settings.has_label(table):
        label = whole_if_gaps(read_column(table, settings.label))
    unlabelled = []
    if label is not None and bool((gone := label.missing).any()) and not bool(gone.all()):
        unlabelled = [f"{int(gone.sum()):,} of {len(gone):,} rows have no label and are left out"]
        clients = clients.chosen(~gone[clients.rows]).without_empty()
    names = settings.chosen(table)
    told, wrong = describe_label(label, settings, clients, scaled=settings.scale_target)
    problems = unlabelled + quality.size_problems(clients, settings.min_samples) + wrong
    if label is not None:
        problems += target_doubts(label, settings.target, clients.rows)
    if not names:
        problems.append("there is no column of features, which is refused")
    evidence = quality.collect_evidence(owner, label)
    width = min(max(map(len, names), default=0), WIDEST)
    lines = [headline(name, clients, f"columns of features: {len(names):,}")]
    lines += [*size_lines(clients), *told, "", "features"]
    for feature in names:
        column = read_column(table, feature)
        if feature in settings.category_columns:
            column = as_text(column)
        lines.append(f"  {feature[:width]:{width}}  {column_summary(column, clients)}")
        problems += quality.column_problems(column, evidence)
    return format_page(lines, problems)


def describe_federation_data(federation: Federation) -> str:
    """The description of a federation that is built: its clients, labels and true clusters."""
    train, test = federation.train, federation.test
    both = test is not None and not federation.unseen
    each = train.sizes + test.sizes if test is not None and both else train.sizes
    count = int(each.sum())
    features = "samples of " + ", ".join(map(str, sample_kinds(train.x)))
    lines = [f"{federation.name}: {len(each):,} clients, {count:,} {features}"]
    if test is not None:
        tested = f"{len(test.y):,}"
        others = f"{tested} more belong to {len(test):,} clients that only test"
        lines += [f"{tested} of them are there to test on" if both else others]
    names = federation.clients or tuple(map(str, range(len(each))))
    clients = ClientRows(names, np.arange(count), offsets_of(each.tolist()))
    lines += size_lines(clients)
    if not federation.labelled:
        lines += describe_label(None, Table(), clients, scaled=False)[0]
    elif isinstance(train.y, Tensor) and train.y.dim() == 1:
        parts = [train] if test is None or not both else [train, test]
        # Every client's labels, those it trains on before those it is tested on.
        labels = torch.cat([part.client(i)[1] for i in range(len(train)) for part in parts])
        classes: tuple[str, ...] = ()
        if not labels.is_floating_point():
            classes = federation.classes or tuple(map(str, range(int(labels.max()) + 1)))
        column = Column("label", "number", labels.numpy())
        lines += label_lines(column, Labels(labels.numpy(), classes), clients)
    if federation.cluster is not None:
        counts = " ".join(map(str, federation.cluster.bincount().tolist()))
        lines += ["", f"true clusters have these numbers of clients: {counts}"]
    return "\n".join(lines)


def format_page(lines: list[str], problems: list[str]) -> str:
    """The description with its problems at the end."""
    wrong = [f"  - {problem}" for problem in problems] or ["  nothing"]
    return "\n".join([*lines, "", "what looks wrong", *wrong])


def headline(name: str, clients: ClientRows, features: str) -> str:
    return f"{name}: {len(clients.names):,} clients, {len(clients.rows):,} rows, {features}"


def size_lines(clients: ClientRows) -> list[str]:
    """The sizes of clients: the range, and a histogram of up to six bars.

    >>> rows, offsets = np.arange(7), np.array([0, 2, 4, 7])
    >>> print("\\n".join(size_lines(ClientRows(("a", "b", "c"), rows, offsets))[2:]))
      2  ##############################  2
      3  ###############                 1
    """
    each = np.diff(clients.offsets)
    low, high = int(each.min()), int(each.max())
    lines = ["", f"rows of a client: {low:,} to {high:,}, median {np.median(each):,.10g}"]
    edges = histogram_edges(low, high)
    counts = np.histogram(each, [*edges, high + 1])[0]
    last = [*(edge - 1 for edge in edges[1:]), high]
    names = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in zip(edges, last, strict=True)]
    width = max(map(len, names))
    for text, count in zip(names, counts.tolist(), strict=True):
        bar = "#" * round(BAR * count / counts.max())
        lines.append(f"  {text:>{width}}  {bar or ('.' if count else ''):{BAR}}  {count:,}")
    return lines


def histogram_edges(low: int, high: int) -> list[int]:
    """Where up to six bars begin; when sizes differ much, each is as many times the one before."""
    steps = np.geomspace if high > 20 * low else np.linspace
    return sorted({int(edge) for edge in steps(low, high + 1, 7)[:-1]} | {low})


def describe_label(
    column: Column | None, settings: Table, clients: ClientRows, *, scaled: bool
) -> tuple[list[str], list[str]]:
    """What there is to say about the labels, and what looks wrong with them; `scaled` if to be."""
    if column is None:
        return ["", "no label: samples can be clustered, nothing can be predicted"], []
    labels = read_labels(column, settings.target, clients.rows)
    problems = quality.label_problems(column, labels, clients, scaled=scaled)
    return label_lines(column, labels, clients), problems


def label_lines(column: Column, labels: Labels, clients: ClientRows) -> list[str]:
    """The labels of all, and how much clients differ in them."""
    values = labels.values[clients.rows]
    if labels.regression:
        told = column_moments(values.astype(np.float64), clients.offsets)
        means = np.add.reduceat(values.astype(np.float64), clients.offsets[:-1])
        means /= np.diff(clients.offsets)
        between = np.average((means - told.mean) ** 2, weights=np.diff(clients.offsets))
        share = between / told.deviation**2
        return [
            "",
            f"label `{column.name}`: regression, mean {told.mean:.4g}, "
            f"standard deviation {told.deviation:.4g}",
            f"  the means of clients make up {share:.0%} of its variance",
        ]
    counts = category_counts(values, clients.offsets, len(labels.classes)).toarray()[:, :-1]
    shares = counts / counts.sum(1, keepdims=True)
    overall = counts.sum(0) / counts.sum()
    apart = np.abs(shares - overall).sum(1) / 2
    single = int((counts.astype(bool).sum(1) == 1).sum())
    common = np.argsort(-overall, kind="stable")[:SHOWN].tolist()
    width = min(max(len(labels.classes[i]) for i in common), WIDEST)
    lines = ["", f"label `{column.name}`: classification, {len(labels.classes):,} classes"]
    lines += [f"  {labels.classes[i][:width]:{width}}  {overall[i]:6.1%}" for i in common]
    if len(labels.classes) > SHOWN:
        rest = 1 - overall[common].sum()
        lines.append(f"  {len(labels.classes) - SHOWN:,} others  {rest:6.1%}")
    lines.append(
        f"  a client's shares are {apart.mean():.2f} away from these on average "
        "(0: all alike, 1: nothing in common)"
    )
    lines.append(f"  clients with one class only: {single:,}")
    return lines


def column_summary(column: Column, clients: ClientRows) -> str:
    """The kind of a column, what it holds, and how much is missing."""
    gone = float(column.missing.mean())
    missing = f", {format_share(gone)} missing" if gone else ""
    values = column.values[clients.rows]
    if column.kind == "text":
        counts = total_counts(category_counts(values, clients.offsets, len(column.categories)))[:-1]
        kinds = int((counts > 0).sum())
        return f"text     {kinds:,} different{missing}"
    finite: NDArray[np.float64] = np.where(np.abs(values) <= LARGEST, values, np.nan)
    told = column_moments(finite, clients.offsets)
    if not told.known:
        return "number   nothing but missing values"
    if column.kind == "bool":
        return f"bool     {format_share(told.mean)} true{missing}"
    text = f"mean {told.mean:.4g}, standard deviation {told.deviation:.4g}"
    if column.kind == "date":
        first, last = np.nanmin(finite), np.nanmax(finite)
        text = f"{format_day(first)} to {format_day(last)}" if abs(first) > 366 else f"{text} days"
    return f"{column.kind:7}  {text}{missing}"


def format_share(part: float) -> str:
    """A share as a percentage that is only 0 or 100 when it is.

    >>> format_share(0.25), format_share(1e-6), format_share(1.0)
    ('25.0%', 'under 0.1%', '100.0%')
    """
    return "under 0.1%" if 0 < part < 0.0005 else f"{part:.1%}"


def format_day(number: float) -> str:
    """The date of a number of days since 1970."""
    return str(np.datetime64(int(np.floor(number)), "D"))
