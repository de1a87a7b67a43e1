"""Comparisons: algorithms x federations x seeds, as a table with paired differences."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

from coterie.core.errors import SettingError, did_you_mean
from coterie.experiment.plan import Owners, find_owners, names_a_file
from coterie.experiment.settings import setting_names
from coterie.experiment.sweeps import Job

DEFAULT_SEEDS = 3
# The metrics that a comparison shows, as far as the runs have them.
SHOWN = ("accuracy", "accuracy_macro", "loss", "clusters", "ari", "distance")
PERCENT = ("accuracy", "accuracy_macro")


@dataclass(frozen=True)
class Comparison:
    """What is compared: every algorithm on every federation, with every seed."""

    algorithms: tuple[str, ...]
    federations: tuple[str, ...]
    seeds: tuple[int, ...]
    words: tuple[str, ...]  # key=value, or algorithm.key=value for one algorithm alone

    @classmethod
    def of(cls, words: Sequence[str]) -> Comparison:
        """The comparison behind the words of `coterie compare`.

        >>> Comparison.of(["ifca,local", "rotated-digits", "seeds=2", "ifca.k=4"]).seeds
        (0, 1)
        """
        names = [word for word in words if "=" not in word]
        if len(names) != 2:
            raise SettingError(
                "a comparison needs algorithms and federations, as in: "
                "coterie compare ifca,fedavg,local rotated-digits seeds=3"
            )
        algorithms, federations = (tuple(filter(None, name.split(","))) for name in names)
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        count = pairs.pop("seeds", str(DEFAULT_SEEDS))
        if not count.isdecimal() or int(count) < 1:
            raise SettingError(f"`seeds` must be a whole number of at least 1, got {count}")
        first = pairs.pop("seed", "0")
        if not first.isdecimal():
            raise SettingError(f"`seed` must be a whole number, got {first}")
        seeds = tuple(range(int(first), int(first) + int(count)))
        known = cls(algorithms, federations, seeds, tuple(f"{k}={v}" for k, v in pairs.items()))
        known.check()
        return known

    def check(self) -> None:
        """Refuse names that nobody knows and settings that nothing in the comparison has."""
        known = {
            algorithm: {
                key
                for federation in self.federations
                for key in setting_names(*self._owners(algorithm, federation))
            }
            for algorithm in self.algorithms
        }
        everything = set[str]().union(*known.values())
        for word in self.words:
            name = word.partition("=")[0]
            owner, dot, key = name.rpartition(".")
            if dot and owner not in known:
                near = did_you_mean(owner, known) or f" (compared: {', '.join(known)})"
                raise SettingError(f"{owner} is not in the comparison{near}")
            if key not in (known[owner] if dot else everything):
                raise SettingError(f"no setting is named {key}{did_you_mean(key, everything)}")

    def jobs(self, folder: Path) -> list[Job]:
        """Every run of the comparison, each in its own folder inside `folder`."""
        return [
            Job((algorithm, federation, *self._own(algorithm, federation), f"seed={seed}"), place)
            for federation in self.federations
            for algorithm in self.algorithms
            for seed in self.seeds
            for place in [folder / f"{Path(federation).stem}-{algorithm}-{seed}"]
        ]

    def _own(self, algorithm: str, federation: str) -> Iterable[str]:
        """The settings that one of the runs understands."""
        known = setting_names(*self._owners(algorithm, federation))
        values = self._values(algorithm)
        return (f"{key}={value}" for key, value in values.items() if key in known)

    def _owners(self, algorithm: str, federation: str) -> Owners:
        """The classes that the settings of one of the runs belong to."""
        name = "table" if names_a_file(federation) else federation
        return find_owners(algorithm, name, self._values(algorithm).get("network", ""))

    def _values(self, algorithm: str) -> dict[str, str]:
        """What is said of an algorithm: of it alone, and else of all."""
        values: dict[str, str] = {}
        for word in sorted(self.words, key=lambda word: "." in word.partition("=")[0]):
            name, _, value = word.partition("=")
            owner, _, key = name.rpartition(".")
            if owner in ("", algorithm):
                values[key] = value
        return values


@dataclass(frozen=True)
class Outcome:
    """The results of a comparison: metrics[federation][algorithm][seed].

    A seed is any key by which runs of two algorithms are paired.
    """

    metrics: Mapping[str, Mapping[str, Mapping[Any, Mapping[str, Any]]]]

    @classmethod
    def of(cls, comparison: Comparison, results: Sequence[dict[str, Any]]) -> Outcome:
        """The outcome of the jobs of a comparison, in their order."""
        pending = iter(results)
        return cls(
            {
                federation: {
                    algorithm: {seed: next(pending)["metrics"] for seed in comparison.seeds}
                    for algorithm in comparison.algorithms
                }
                for federation in comparison.federations
            }
        )

    def shown(self, federation: str) -> list[str]:
        """The metrics that every run on a federation has in common with some other."""
        runs = [run for each in self.metrics[federation].values() for run in each.values()]
        return [name for name in SHOWN if any(name in run for run in runs)]

    def best(self, federation: str) -> str:
        """The algorithm with the highest mean accuracy, or the lowest loss where there is none."""

        def merit(algorithm: str) -> float:
            runs = self.metrics[federation][algorithm].values()
            if all("accuracy" in run for run in runs):
                return float(mean(run["accuracy"] for run in runs))
            losses = [run.get("loss", run.get("train_loss", float("inf"))) for run in runs]
            return -float(mean(losses))

        return max(self.metrics[federation], key=merit)

    def table(self, federation: str) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: mean and standard deviation over seeds, and how far behind the best.

        The last column is the mean difference in accuracy to the best algorithm on the same seeds,
        with the p-value of a paired t-test.
        """
        names, best = self.shown(federation), self.best(federation)
        rows = []
        for algorithm, runs in self.metrics[federation].items():
            values = runs.values()
            cells = [cell(name, [run[name] for run in values if name in run]) for name in names]
            behind = self.behind(federation, algorithm, best)
            rows.append([algorithm, *cells, behind])
        return ["algorithm", *names, f"against {best}"], rows

    def behind(self, federation: str, algorithm: str, best: str) -> str:
        """The paired difference in accuracy to the best algorithm, and its p-value."""
        mine, theirs = (self.metrics[federation][name] for name in (algorithm, best))
        seeds = [seed for seed in mine if seed in theirs]
        pairs = [(mine[seed], theirs[seed]) for seed in seeds]
        if algorithm == best or not pairs or not all("accuracy" in run for p in pairs for run in p):
            return ""
        one, two = ([100 * pair[i]["accuracy"] for pair in pairs] for i in (0, 1))
        difference = mean(a - b for a, b in zip(one, two, strict=True))
        if len(one) < 2:
            return f"{difference:+.2f}"
        gaps = {a - b for a, b in zip(one, two, strict=True)}
        p = float(stats.ttest_rel(one, two).pvalue) if len(gaps) > 1 else float("nan")
        return f"{difference:+.2f} (p = {p:.2g})" if p == p else f"{difference:+.2f}"

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


def cell(name: str, values: list[float]) -> str:
    """Mean and standard deviation of a metric, accuracies in percent.

    >>> cell("accuracy", [0.5, 0.52]), cell("ari", [1.0])
    ('51.00 ± 1.41', '1.000')
    """
    if not values:
        return ""
    factor, digits = (100, 2) if name in PERCENT else (1, 3)
    text = f"{factor * mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {factor * stdev(values):.{digits}f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table for a README."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def latex(head: list[str], rows: list[list[str]]) -> str:
    """A table for a paper."""

    def line(cells: list[str]) -> str:
        texts = (c.replace("_", " ").replace("±", r"$\pm$").replace("%", r"\%") for c in cells)
        return " & ".join(texts) + r" \\"

    body = [line(row) for row in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\hline",
            line(head),
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
        ]
    )


FORMATS = {"markdown": markdown, "latex": latex}
