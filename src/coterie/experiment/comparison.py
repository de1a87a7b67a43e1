"""Comparisons: algorithms x federations x seeds, each a run of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import SettingError, did_you_mean
from coterie.core.names import file_name
from coterie.evaluation.results_table import ComparisonResults
from coterie.experiment.checkpoint import json_digest
from coterie.experiment.plan import Owners, find_owners, names_a_file
from coterie.experiment.settings import setting_names
from coterie.experiment.sweeps import Job

DEFAULT_SEEDS = 3


class SeedPair(NamedTuple):
    """The seeds of a run of a comparison."""

    seed: int
    split_seed: int | None  # None: by the settings

    @property
    def words(self) -> list[str]:
        """As they are on the command line."""
        split = [] if self.split_seed is None else [f"split_seed={self.split_seed}"]
        return [*split, f"seed={self.seed}"]

    @property
    def place(self) -> str:
        """As a part of a folder's name."""
        split = "" if self.split_seed is None else f"split{self.split_seed}-"
        return f"{split}{self.seed}"


@dataclass(frozen=True)
class Comparison:
    """What is compared: every algorithm on every federation, with every seed."""

    algorithms: tuple[str, ...]
    federations: tuple[str, ...]
    seeds: tuple[int, ...]  # of the start, and of the data unless these have their own
    settings: dict[str, str]  # by key, or algorithm.key for one algorithm alone
    split_seeds: tuple[int, ...] = ()  # of the data; none: by the settings

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
        splits = pop_range(pairs, "split_seeds", "") if "split_seeds" in pairs else ()
        # Who asks for splits alone gets one start on each.
        seeds = pop_range(pairs, "seeds", "1" if splits else str(DEFAULT_SEEDS))
        comparison = cls(algorithms, federations, seeds, pairs, splits)
        comparison.check()
        return comparison

    @property
    def metric(self) -> str:
        """The metric that decides; empty: that of the task."""
        return self.settings.get("metric", "auto").replace("auto", "")

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
            Job(
                (algorithm, federation, *self._own(algorithm, federation), *repeat.words),
                folder / f"{places[federation]}-{file_name(algorithm)}-{repeat.place}",
            )
            for federation in self.federations
            for algorithm in self.algorithms
            for repeat in self.repeats
        ]

    @property
    def repeats(self) -> list[SeedPair]:
        """The seeds of each run of an algorithm on a federation."""
        return [
            SeedPair(seed, split) for split in self.split_seeds or (None,) for seed in self.seeds
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


def pop_range(pairs: dict[str, str], name: str, usual: str) -> tuple[int, ...]:
    """The seeds that `seeds=5` or `split_seeds=5` stand for, from `seed=` or `split_seed=` on."""
    single = name.removesuffix("s")
    count, first = pairs.pop(name, usual), pairs.pop(single, "0")
    if not count.isdecimal() or len(count) > 4 or int(count) < 1:
        raise SettingError(f"`{name}` must be a whole number from 1 to 9999, got {count}")
    if not first.isdecimal() or len(first) > 15:
        raise SettingError(f"`{single}` must be a whole number below 10^15, got {first}")
    return tuple(range(int(first), int(first) + int(count)))


def results_of_jobs(
    comparison: Comparison, results: Sequence[dict[str, Any] | None]
) -> ComparisonResults:
    """The results of the jobs of a comparison, in their order; None is one that failed."""
    pending = iter(results)
    groups = {
        federation: {
            algorithm: [
                {"seed": repeat.seed, **result}
                for repeat in comparison.repeats
                for result in [next(pending)]
                if result
            ]
            for algorithm in comparison.algorithms
        }
        for federation in comparison.federations
    }
    return ComparisonResults.of(groups, comparison.metric)
