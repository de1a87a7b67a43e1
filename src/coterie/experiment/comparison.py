"""Comparisons: algorithms x federations x seeds, each a run of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.core.errors import SettingError, did_you_mean
from coterie.data import FEDERATIONS
from coterie.evaluation.significance import ComparisonResults
from coterie.experiment.plan import named, names_a_file
from coterie.experiment.settings import RunSettings, setting_names
from coterie.experiment.sweeps import Job

DEFAULT_SEEDS = 3


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
        owners: dict[str, set[str]] = {}
        for name in self.algorithms:
            owners[name] = set(setting_names(named("algorithm", name, ALGORITHMS)))
        shared = set(setting_names(RunSettings, *map(federation_class, self.federations)))
        everything = shared.union(*owners.values())
        for word in self.words:
            name = word.partition("=")[0]
            owner, dot, key = name.rpartition(".")
            if dot and owner not in owners:
                near = did_you_mean(owner, owners) or f" (compared: {', '.join(owners)})"
                raise SettingError(f"{owner} is not in the comparison{near}")
            if key not in (owners[owner] | shared if dot else everything):
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
        kinds = [
            named("algorithm", algorithm, ALGORITHMS),
            federation_class(federation),
            RunSettings,
        ]
        known = setting_names(*kinds)
        values: dict[str, str] = {}
        # What is said of one algorithm alone overrides what is said of all.
        for word in sorted(self.words, key=lambda word: "." in word.partition("=")[0]):
            name, _, value = word.partition("=")
            owner, _, key = name.rpartition(".")
            if owner in ("", algorithm) and key in known:
                values[key] = value
        return (f"{key}={value}" for key, value in values.items())


def results_of_jobs(comparison: Comparison, results: Sequence[dict[str, Any]]) -> ComparisonResults:
    """The results of the jobs of a comparison, in their order."""
    pending = iter(results)
    return ComparisonResults(
        {
            federation: {
                algorithm: {seed: next(pending)["metrics"] for seed in comparison.seeds}
                for algorithm in comparison.algorithms
            }
            for federation in comparison.federations
        }
    )


def federation_class(federation: str) -> type[Any]:
    """The settings class of a federation, or of a file of the user's."""
    return named("federation", "table" if names_a_file(federation) else federation, FEDERATIONS)
