"""Tables of a recipe whose entries differ in several values: one of them down, one across.

    [[pivot]]
    title = "Accuracy in percent; ARI where it is not 1"
    rows = "method"                 # a value of the entries
    columns = "share"
    metric = "accuracy"
    percent = true                  # the metric; without it, as it is
    beside = "ari"                  # another metric, told where it is not `usual`
    usual = 1.0
    only = { data = "digits" }      # without it, all entries that have both values

Each cell is a mean over seeds, with their standard deviation where it is above `spread`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.experiment.rates import EachEntry
from coterie.report.text_tables import markdown_table

Number = tuple[float, float]  # mean and standard deviation over seeds
NOTHING = "-"  # the cell of what was not measured


@dataclass(frozen=True)
class Pivot:
    """A metric of entries by two of their values."""

    rows: str
    columns: str
    metric: str = "accuracy"
    title: str = ""
    percent: bool = False
    spread: float = 0.0  # standard deviations up to this are not told
    beside: str = ""
    usual: float | None = None  # of the metric beside, which is then not told
    only: Mapping[str, Any] = field(default_factory=dict)

    def markdown(
        self, entries: Sequence[EachEntry], numbers: Mapping[str, Mapping[str, Number]]
    ) -> str:
        """The table in Markdown, by the numbers of entries; a dash where nothing was measured.

        Rows and columns of dashes only are left out.
        """
        cells: dict[Any, dict[Any, str]] = {}
        columns: dict[Any, None] = {}
        known: set[Any] = set()
        for entry in entries:
            values = entry.values
            if not {self.rows, self.columns} <= set(values):
                continue
            if any(values.get(name) != wanted for name, wanted in self.only.items()):
                continue
            row, column = values[self.rows], values[self.columns]
            found = self.cell(numbers.get(entry.name))
            if found != NOTHING:
                known.add(column)
                cells.setdefault(row, {})[column] = found
            columns[column] = None
        shown = [column for column in columns if column in known]
        head = ["", *map(str, shown)]
        lines = [
            [str(row), *(own.get(column, NOTHING) for column in shown)]
            for row, own in cells.items()
        ]
        table = markdown_table(head, lines)
        return f"{self.title}\n\n{table}" if self.title else table

    def cell(self, numbers: Mapping[str, Number] | None) -> str:
        """What is told of an entry; of one that ran, but not to numbers, that it diverged."""
        if numbers is None:
            return NOTHING
        if self.metric not in numbers:  # a run with a loss has no such metric
            return NOTHING if {"loss", "train_loss"} & set(numbers) else "diverged"
        mean, deviation = numbers[self.metric]
        text = f"{100 * mean:.1f}" if self.percent else f"{mean:.2f}"
        if deviation > self.spread:
            text += f" ± {100 * deviation:.1f}" if self.percent else f" ± {deviation:.2f}"
        if self.beside in numbers:
            other = f"{numbers[self.beside][0]:.2f}"
            if self.usual is None or other != f"{self.usual:.2f}":
                text += f", {self.beside.upper() if len(self.beside) < 4 else self.beside} {other}"
        return text
