"""Comparisons: algorithms x federations x seeds, each a run of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import SettingError, did_you_mean
from coterie.core.names import file_name
from coterie.evaluation.significance import ComparisonResults
from coterie.experiment.checkpoint import json_digest
from coterie.experiment.plan import Owners, find_owners, names_a_file
from coterie.experiment.settings import setting_names
from coterie.experiment.sweeps import Job

DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Comparison:
    """What is compared: every algorithm on every federation, with every seed."""

    algorithms: tuple[str, ...]
    federations: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, str]  # by key, or algorithm.key for one algorithm alone

    @classmethod
    def parse(cls, words: Sequence[str]) -> Comparison:
        """The comparison behind the words of `coterie compare`.

        >>> Comparison.parse(["ifca,local", "rotated-digits", "seeds=2", "ifca.k=4"]).seeds
        (0, 1)
        """
        names = [word for word in words if "=" not in word]
        if len(names) != 2:
            raise SettingError(
                "a comparison needs algorithms and federations, as in: "
                "coterie compare ifca,fedavg,local rotated-digits seeds=3"
            )
        algorithms, federations = (tuple(filter(None, name.split(","))) for name in names)
        for name, times in Counter([*algorithms, *federations]).items():
            if times > 1:
                raise SettingError(f"{name} is in the comparison twice")
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        count = pairs.pop("seeds", str(DEFAULT_SEEDS))
        if not count.isdecimal() or int(count) < 1:
            raise SettingError(f"`seeds` must be a whole number of at least 1, got {count}")
        first = pairs.pop("seed", "0")
        if not first.isdecimal():
            raise SettingError(f"`seed` must be a whole number, got {first}")
        seeds = tuple(range(int(first), int(first) + int(count)))
        comparison = cls(algorithms, federations, seeds, pairs)
        comparison.check()
        return comparison

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
        for name in self.settings:
            owner, dot, key = name.rpartition(".")
            if dot and owner not in known:
                near = did_you_mean(owner, known) or f" (compared: {', '.join(known)})"
                raise SettingError(f"{owner} is not in the comparison{near}")
            if key not in (known[owner] if dot else everything):
                raise SettingError(f"no setting is named {key}{did_you_mean(key, everything)}")

    def jobs(self, folder: Path) -> list[Job]:
        """Every run of the comparison, each in its own folder inside `folder`."""
        places = part_names(self.federations)
        return [
            Job((algorithm, federation, *self._own(algorithm, federation), f"seed={seed}"), place)
            for federation in self.federations
            for algorithm in self.algorithms
            for seed in self.seeds
            for place in [folder / f"{places[federation]}-{file_name(algorithm)}-{seed}"]
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
        for name in sorted(self.settings, key=lambda name: "." in name):
            owner, _, key = name.rpartition(".")
            if owner in ("", algorithm):
                values[key] = self.settings[name]
        return values


def part_names(federations: Sequence[str]) -> dict[str, str]:
    """Federations as parts of folders' names: their own, or those of files without the ending.

    Files of one name are told apart by a digest of their paths.
    """
    names = {
        each: file_name(Path(each).stem if names_a_file(each) else each) for each in federations
    }
    counts = Counter(names.values())
    return {
        each: name if counts[name] == 1 else f"{name}-{json_digest(str(Path(each).absolute()))[:8]}"
        for each, name in names.items()
    }


def results_of_jobs(
    comparison: Comparison, results: Sequence[dict[str, Any] | None]
) -> ComparisonResults:
    """The results of the jobs of a comparison, in their order; None is one that failed."""
    pending = iter(results)
    return ComparisonResults(
        {
            federation: {
                algorithm: {
                    seed: result["metrics"]
                    for seed in comparison.seeds
                    for result in [next(pending)]
                    if result
                }
                for algorithm in comparison.algorithms
            }
            for federation in comparison.federations
        }
    )
