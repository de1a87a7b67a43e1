"""The statistics of a comparison: means over seeds, paired differences and their p-values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, TypeGuard

from scipy import stats

from coterie.evaluation.measures import FIXED_METRICS

# The metrics that a comparison shows, as far as the runs have them.
SHOWN = ("accuracy", "accuracy_macro", "loss", "clusters", "ari", "distance")
PERCENT = ("accuracy", "accuracy_macro")


@dataclass(frozen=True)
class ComparisonResults:
    """The results of a comparison: metrics[federation][algorithm][seed].

    A seed is any key by which runs of two algorithms are paired. Runs that failed are left out.
    """

    metrics: Mapping[str, Mapping[str, Mapping[Any, Mapping[str, Any]]]]

    def shown_metrics(self, federation: str) -> list[str]:
        """The metrics that are shown, as far as some run has them, and the algorithms' own."""
        runs = [run for each in self.metrics[federation].values() for run in each.values()]
        known = dict.fromkeys(name for run in runs for name in run)
        own = [name for name in known if name not in FIXED_METRICS]
        return [*(name for name in SHOWN if name in known), *own]

    def best(self, federation: str) -> str:
        """The algorithm with the highest mean accuracy, or the lowest loss where there is none.

        Runs that diverged or failed do not count; an algorithm of which all did is never best.
        """
        groups = self.metrics[federation]
        classified = any("accuracy" in run for runs in groups.values() for run in runs.values())

        def merit(algorithm: str) -> float:
            runs = [*groups[algorithm].values()]
            if classified:
                return mean_or(finite_metrics(runs, "accuracy"), -math.inf)
            losses = finite_metrics(runs, "loss") or finite_metrics(runs, "train_loss")
            return -mean_or(losses, math.inf)

        return max(groups, key=merit)

    def table(self, federation: str) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: mean and standard deviation over seeds, and how far behind the best.

        The last column is the mean difference in accuracy to the best algorithm on the same seeds,
        with the p-value of a paired t-test.
        """
        names, best = self.shown_metrics(federation), self.best(federation)
        rows = []
        for algorithm, runs in self.metrics[federation].items():
            cells = [
                metric_cell(name, [run[name] for run in runs.values() if name in run])
                for name in names
            ]
            difference = self.difference_to_best(federation, algorithm, best)
            rows.append([algorithm, *cells, difference])
        return ["algorithm", *names, f"against {best}"], rows

    def difference_to_best(self, federation: str, algorithm: str, best: str) -> str:
        """The paired difference in accuracy to the best algorithm, and its p-value."""
        mine, theirs = (self.metrics[federation][name] for name in (algorithm, best))
        pairs = [
            [100 * value for value in found]
            for seed in mine
            if seed in theirs
            for found in [finite_metrics([mine[seed], theirs[seed]], "accuracy")]
            if len(found) == 2
        ]
        if algorithm == best or not pairs:
            return ""
        one, two = ([pair[i] for pair in pairs] for i in (0, 1))
        gaps = [a - b for a, b in zip(one, two, strict=True)]
        # Without different gaps there is no test.
        p = float(stats.ttest_rel(one, two).pvalue) if len(set(gaps)) > 1 else float("nan")
        return f"{mean(gaps):+.2f}" + (f" (p = {p:.2g})" if p == p else "")

    def csv(self) -> str:
        """Every metric of every run, for a spreadsheet or another program."""
        runs = [
            (federation, algorithm, seed, run)
            for federation, algorithms in self.metrics.items()
            for algorithm, each in algorithms.items()
            for seed, run in each.items()
        ]
        names = list(dict.fromkeys(name for *_, run in runs for name in run))
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["federation", "algorithm", "seed", *names])
        table.writerows([*run[:3], *(run[3].get(name) for name in names)] for run in runs)
        return text.getvalue().rstrip("\n")


def metric_cell(name: str, values: Sequence[float | None]) -> str:
    """Mean and standard deviation of a metric, accuracies in percent.

    A value that is None or not finite is that of a run that diverged; such are counted.

    >>> metric_cell("accuracy", [0.5, 0.52]), metric_cell("ari", [1.0]), metric_cell("loss", [None])
    ('51.00 ± 1.41', '1.000', 'diverged')
    >>> metric_cell("loss", [1.0, 2.0, None])
    '1.500 ± 0.707 (1 diverged)'
    """
    finite = [value for value in values if is_finite(value)]
    if not finite:
        return "diverged" if values else ""
    factor, digits = (100, 2) if name in PERCENT else (1, 3)
    text = f"{factor * mean(finite):.{digits}f}"
    if len(finite) > 1:
        text += f" ± {factor * stdev(finite):.{digits}f}"
    lost = len(values) - len(finite)
    return f"{text} ({lost} diverged)" if lost else text


def finite_metrics(runs: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The values of a metric in those runs that have one and did not diverge."""
    return [run[name] for run in runs if is_finite(run.get(name))]


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a metric is a finite number: in JSON, others are null."""
    return value is not None and math.isfinite(value)


def mean_or(values: Sequence[float], missing: float) -> float:
    """The mean, or `missing` where there is no value."""
    return float(mean(values)) if values else missing
