"""The results of a comparison as a table: means over runs, and how far each is behind the best."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeGuard

from coterie.evaluation.metrics import FIXED_METRICS, METRICS, default_metric, is_share, name_in
from coterie.evaluation.significance import (
    Repeat,
    as_repeat,
    has_splits,
    holm,
    independent_gaps,
    repeats_text,
    resampled_t_test,
)

# The metrics that a comparison shows, as far as the runs have them; those of samples are of the
# part that is tested on, or else of training.
SHOWN = ("accuracy", "accuracy_macro", "auc", "rmse", "mae", "r2", "loss")
SHOWN_OF_CLUSTERS = ("clusters", "ari", "distance")
CONSTANT = "constant"  # the row of what needs no model


class Difference(NamedTuple):
    """How far a method is from the best, on the same seeds."""

    mean: float
    p: float | None  # None where there is no test


@dataclass(frozen=True)
class ComparisonResults:
    """The results of a comparison: metrics[federation][algorithm][repeat].

    A repeat is a `Repeat`, or any key by which runs of two algorithms are paired. Runs that failed
    are left out.
    """

    metrics: Mapping[str, Mapping[str, Mapping[Any, Mapping[str, Any]]]]
    # By federation: the metric that decides; none: that of the task.
    judges: Mapping[str, str] = field(default_factory=dict)
    # By federation, where the same samples are split anew each time: test samples for each one of
    # training. None: it is not known.
    overlaps: Mapping[str, float | None] = field(default_factory=dict)
    # By federation: the metrics of the best constant prediction, by repeat.
    constants: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, groups: Mapping[str, Mapping[str, Iterable[Mapping[str, Any]]]], metric: str = ""
    ) -> ComparisonResults:
        """Of what result.json says of runs: groups[federation][algorithm] are such results.

        `metric` decides; without it what the runs of a federation were judged by.
        """
        metrics: dict[str, dict[str, dict[Any, Any]]] = {}
        judges: dict[str, str] = {}
        overlaps: dict[str, float | None] = {}
        constants: dict[str, dict[Any, Any]] = {}
        for federation, algorithms in groups.items():
            known = metrics.setdefault(federation, {})
            overlapping: list[float | None] = []
            for algorithm, results in algorithms.items():
                runs = known.setdefault(algorithm, {})
                for result in results:
                    repeat = repeat_of(result, runs)
                    runs[repeat] = result["metrics"]
                    if result.get("baseline"):
                        constants.setdefault(federation, {})[repeat] = result["baseline"]
                    judges.setdefault(federation, metric or result.get("metric", ""))
                    overlapping += overlap_of(result)
            if overlapping:
                sure = [ratio for ratio in overlapping if ratio is not None]
                overlaps[federation] = mean(sure) if len(sure) == len(overlapping) else None
        return cls(metrics, judges, overlaps, constants)

    def judge(self, federation: str) -> str:
        """The metric that decides on a federation."""
        known = {name: 0 for run in self._runs(federation) for name in run}
        plain = {name for name in METRICS if name_in(name, known)}
        return self.judges.get(federation) or default_metric(dict.fromkeys(plain, 0))

    def _runs(self, federation: str) -> list[Mapping[str, Any]]:
        return [run for each in self.metrics[federation].values() for run in each.values()]

    def shown_metrics(self, federation: str) -> list[str]:
        """The metrics that are shown, as far as some run has them, and the algorithms' own."""
        known = {name: 0 for run in self._runs(federation) for name in run}
        own = [name for name in known if name not in FIXED_METRICS]
        judge = [] if self.judge(federation) in SHOWN_OF_CLUSTERS else [self.judge(federation)]
        of_samples = [name_in(name, known) for name in dict.fromkeys([*SHOWN, *judge])]
        of_clusters = [name for name in SHOWN_OF_CLUSTERS if name in known]
        return [*filter(None, of_samples), *of_clusters, *own]

    def best(self, federation: str) -> str:
        """The algorithm with the best mean of the metric that decides.

        Runs that diverged or failed do not count; an algorithm of which all did is never best.
        """
        groups, judge = self.metrics[federation], self.judge(federation)
        sign = 1 if METRICS[judge].higher else -1

        def merit(algorithm: str) -> float:
            found = [judged_value(run, judge) for run in groups[algorithm].values()]
            return sign * mean_or([v for v in found if is_finite(v)], -sign * math.inf)

        return max(groups, key=merit)

    def table(self, federation: str) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: mean and standard deviation, and how far behind the best.

        The last column is the mean difference to the best algorithm on the same seeds, in the
        metric that decides, with its p-value; `caption` says which test that is of. The last row is
        what a constant prediction reaches, where that is known.
        """
        names, best = self.shown_metrics(federation), self.best(federation)
        differences = self.differences(federation)
        rows = []
        for algorithm, runs in self.metrics[federation].items():
            text = difference_text(differences.get(algorithm), self.judge(federation))
            rows.append([algorithm, *metric_cells(names, list(runs.values())), text])
        constant = list(self.constants.get(federation, {}).values())
        if constant:
            rows.append([CONSTANT, *metric_cells(names, constant), ""])
        return ["algorithm", *names, f"against {best}"], rows

    def differences(self, federation: str) -> dict[str, Difference]:
        """How far each algorithm is from the best, where they have runs of the same seeds.

        In percentage points where the metric is a share. p-values are adjusted by Holm's procedure.
        """
        groups, best = self.metrics[federation], self.best(federation)
        judge = self.judge(federation)
        factor, ratio = 100 if is_share(judge) else 1, self.overlaps.get(federation, 0.0)
        found: dict[str, Difference] = {}
        for algorithm, runs in groups.items():
            gaps = paired_gaps(runs, groups[best], judge)
            if algorithm == best or not gaps:
                continue
            units = independent_gaps(gaps)
            p = resampled_t_test(units, ratio if has_splits(gaps) else 0.0)
            found[algorithm] = Difference(factor * mean(units), p)
        tested = {name: each.p for name, each in found.items() if each.p is not None}
        adjusted = dict(zip(tested, holm([*tested.values()]), strict=True))
        return {name: each._replace(p=adjusted.get(name)) for name, each in found.items()}

    def caption(self, federation: str) -> str:
        """What the table of a federation says: what varies between runs, and which test it has."""
        repeats = {r for runs in self.metrics[federation].values() for r in runs}
        parts = [
            f"{repeats_text(repeats)}; mean ± standard deviation",
            f"decided by {self.judge(federation)}",
        ]
        found = self.differences(federation)
        if any(each.p is not None for each in found.values()):
            parts.append(self._test_text(federation, repeats, len(found)))
        return ". ".join(part[0].upper() + part[1:] for part in parts) + "."

    def _test_text(self, federation: str, repeats: set[Any], methods: int) -> str:
        ratio, splits = self.overlaps.get(federation, 0.0), has_splits(repeats)
        text = "p of a paired t-test"
        if splits and ratio:
            text += (
                f", corrected for splits that overlap (Nadeau and Bengio, {ratio:.3g} test samples "
                "for each one of training)"
            )
        if methods > 1:
            text += f", adjusted for {methods} methods (Holm)"
        known = {r.split for r in repeats if isinstance(r, Repeat)}
        if not splits and len(known) == 1:
            text += "; it is about other starts on these data, not about other data"
        return text

    def csv(self) -> str:
        """Every metric of every run, for a spreadsheet or another program."""
        runs = [
            (federation, algorithm, as_repeat(repeat), run)
            for federation, algorithms in self.metrics.items()
            for algorithm, each in algorithms.items()
            for repeat, run in each.items()
        ]
        names = list(dict.fromkeys(name for *_, run in runs for name in run))
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["federation", "algorithm", "seed", "split_seed", *names])
        table.writerows(
            [place, label, repeat.start, repeat.split, *(run.get(name) for name in names)]
            for place, label, repeat, run in runs
        )
        return text.getvalue().rstrip("\n")


def repeat_of(result: Mapping[str, Any], known: Mapping[Any, Any]) -> Repeat:
    """The seeds of a run, by its result; `known` are those of runs that came before."""
    data = result.get("data") or {}
    repeat = Repeat(data.get("seed"), result.get("seed"))
    while repeat in known:
        repeat = repeat._replace(again=repeat.again + 1)
    return repeat


def overlap_of(result: Mapping[str, Any]) -> list[float | None]:
    """Test samples for each one of training, where another seed splits the same samples anew.

    None if it is not known; nothing where seeds do not do that.
    """
    data = result.get("data") or {}
    if not data.get("resplits"):
        return []
    trained = (data.get("train") or 0) + (data.get("validation") or 0)
    return [data["test"] / trained if trained and data.get("test") else None]


def paired_gaps(
    mine: Mapping[Any, Mapping[str, Any]], best: Mapping[Any, Mapping[str, Any]], metric: str
) -> dict[Any, float]:
    """The difference of two methods in a metric, by the repeats that both have."""
    pairs = {
        key: [judged_value(runs[key], metric) for runs in (mine, best)]
        for key in mine
        if key in best
    }
    return {
        key: one - two for key, (one, two) in pairs.items() if is_finite(one) and is_finite(two)
    }


def judged_value(run: Mapping[str, Any], metric: str) -> Any:
    """The value of a metric in a run, of the test part or else of training; None if it has none."""
    name = name_in(metric, run)
    return None if name is None else run[name]


def difference_text(difference: Difference | None, metric: str) -> str:
    """A difference and its p-value; empty where there is none."""
    if difference is None:
        return ""
    digits = 2 if is_share(metric) else 3
    text = f"{difference.mean:+.{digits}f}"
    return text if difference.p is None else f"{text} (p = {difference.p:.2g})"


def metric_cells(names: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cell of each metric over some runs."""
    return [metric_cell(name, [run[name] for run in runs if name in run]) for name in names]


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
    factor, digits = (100, 2) if is_share(name) else (1, 3)
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
