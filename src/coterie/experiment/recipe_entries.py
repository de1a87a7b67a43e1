"""Entries of recipes: lines of `coterie run`, each with its name and what was published for it.

[lists]                         # of values, for several entries
share = [{ share = 0, attack = "none" }, { share = 10, attack = "boosted attackers=0.1" }]

[[entry]]
name = "{method}, {share} %"
run = "{run} rotated-digits attack={attack}"
each = ["method", "share"]      # names of lists, all combined; or the values themselves
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import SettingError, did_you_mean

Values = dict[str, Any]  # what is filled in
ValueLists = Mapping[str, Sequence[Values]]


@dataclass(frozen=True)
class Entry:
    """One line of a table: what is run, what was published, how near is near enough."""

    name: str
    run: str  # words of `coterie run`, without the seed, before values are filled in
    quick: str | None  # settings that make it quick; None: left out in quick mode
    published: dict[str, float]
    tolerance: dict[str, float]
    template: str = ""  # its name before values were filled in
    values: dict[str, Any] = field(default_factory=dict)  # these values
    pool: Sequence[dict[str, Any]] = ({},)  # further values: a run for each, whose mean is meant

    def words(self, mode: str, seed: int) -> list[tuple[str, ...]]:
        """The words of `coterie run` for every run with a seed, quick or full."""
        return [
            (*self._words(mode, {**self.values, **pooled, "seed": seed}), f"seed={seed}")
            for pooled in self.pool
        ]

    def _words(self, mode: str, values: dict[str, Any]) -> list[str]:
        words = shlex.split(self.run.format(**values))
        if mode == "full":
            return words
        quick = shlex.split((self.quick or "").format(**values))
        changed = dict(word.split("=", 1) for word in quick)
        kept = [word for word in words if word.partition("=")[0] not in changed]
        return kept + [f"{key}={value}" for key, value in changed.items()]

    @classmethod
    def expand(cls, raw: dict[str, Any], lists: ValueLists) -> Iterator[Entry]:
        """The entries that an `[[entry]]` of a recipe stands for."""
        for values in combine_values(raw.get("each", [{}]), lists):
            yield cls(
                raw["name"].format(**values),
                raw["run"],
                raw.get("quick") if values.get("quick", True) else None,
                values.get("published", raw.get("published", {})),
                raw.get("tolerance", {}),
                raw["name"],
                values,
                raw.get("pool", [{}]),
            )


def combine_values(each: str | Sequence[Any], lists: ValueLists) -> Sequence[Values]:
    """The values that `each` of an entry means: its own, or those of all lists that it names.

    >>> combine_values(["a", "b"], {"a": [{"k": 1}, {"k": 2}], "b": [{"n": 5}]})
    [{'k': 1, 'n': 5}, {'k': 2, 'n': 5}]
    """
    names = [each] if isinstance(each, str) else [name for name in each if isinstance(name, str)]
    if not names:
        return each  # type: ignore[return-value]
    for name in names:
        if name not in lists:
            raise SettingError(f"a recipe has no list {name}{did_you_mean(name, lists)}")
    combined: list[Values] = []
    for chosen in itertools.product(*(lists[name] for name in names)):
        values: Values = {}
        for one in chosen:
            values |= one
        if any(one.get("quick") is False for one in chosen):
            values["quick"] = False
        combined.append(values)
    return combined
