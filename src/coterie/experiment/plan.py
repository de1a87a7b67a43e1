"""Algorithms and federations by name, and the plan of a run made of both."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from coterie.algorithms import ALGORITHMS
from coterie.core.errors import CheckpointError, DataError, SettingError, did_you_mean
from coterie.core.task import Task
from coterie.data import FEDERATIONS
from coterie.data.federation import Federation
from coterie.data.tables import Table
from coterie.data.tables.describe import described, described_federation
from coterie.experiment.grid import Grid, grid_points
from coterie.experiment.run import Run
from coterie.experiment.settings import (
    RunSettings,
    grid_text,
    make,
    parse,
    parse_grid,
    setting_names,
)
from coterie.tasks import Centre
from coterie.version import __version__

TABLES = (".csv", ".tsv", ".gz", ".parquet", ".feather", ".arrow")
DEFAULT_ALGORITHM, DEFAULT_FEDERATION = "ifca", "rotated-digits"


def named(kind: str, name: str, known: dict[str, type[Any]]) -> type[Any]:
    """The class behind a name; an unknown name is refused with the near ones."""
    if name not in known:
        near = did_you_mean(name, known) or f" ({kind}s: {', '.join(known)})"
        raise SettingError(f"no {kind} is named {name}{near}")
    return known[name]


def load(name: str, *, seed: int = 0, **settings: Any) -> tuple[Federation, Task]:
    """A built-in federation by its name, and the task that belongs to it.

    >>> federation, task = load("rotated-digits", clients=8)
    >>> len(federation), federation.cluster.tolist()
    (8, [0, 0, 1, 1, 2, 2, 3, 3])
    """
    kind = named("federation", name, FEDERATIONS)
    known = setting_names(kind)
    for key in settings:
        if key not in known:
            raise SettingError(f"{name} has no setting named {key}{did_you_mean(key, known)}")
    spec = kind(**settings)
    federation = spec.build(seed)
    return federation, spec.task(federation)


def built(name: str, spec: Any, seed: int) -> Federation:
    """The federation of some settings; what cannot be is one sentence."""
    try:
        federation: Federation = spec.build(seed)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name} cannot be built: {reason}") from error
    return federation


def described_data(word: str, words: list[str]) -> str:
    """What `coterie data describe` says of a file, a folder or a federation by its name."""
    if names_a_file(word):
        return described(make(Table, parse([f"path={word}", *words], [Table])))
    kind = named("federation", word, FEDERATIONS)
    return described_federation(built(word, make(kind, parse(words, [kind])), seed=0))


class Plan(NamedTuple):
    """What is to be run: two names and the settings of three owners."""

    algorithm_name: str
    federation_name: str
    algorithm: Any
    federation: Any
    settings: RunSettings
    command: str
    grid: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012 - settings with several values

    def config(self) -> dict[str, Any]:
        """What config.json keeps: enough to make the same plan again."""
        return {
            "coterie": __version__,
            "algorithm": self.algorithm_name,
            "federation": self.federation_name,
            "settings": self.values(),
            "command": self.command,
            "started": datetime.now().isoformat(timespec="seconds"),
        }

    def values(self) -> dict[str, Any]:
        """Every setting with its value."""
        several = {name: grid_text(values) for name, values in self.grid.items()}
        own = {**asdict(self.algorithm), **asdict(self.federation), **asdict(self.settings)}
        return own | several

    def prepared(self, federation: Federation) -> tuple[Federation, Task]:
        """A federation as the algorithm sees it, and what it learns there."""
        task: Task = self.federation.task(federation)
        if getattr(self.algorithm, "learns", "") == "centres":
            samples = federation.train
            task = Centre(samples.x[0].numel(), scale=getattr(task, "scale", 1.0))
            # Nothing is predicted: labels that are classes are there to score the clusters by.
            if not samples.y.is_floating_point():
                federation = replace(federation, sample_clusters=True)
        return federation, task

    def run(self, config: dict[str, Any]) -> Run | Grid:
        """Load the data and make ready to run: one run, or copies for several starts or values."""
        data = built(self.federation_name, self.federation, self.settings.seed)
        federation, task = self.prepared(data)
        if self.grid or self.settings.starts > 1:
            return Grid(self.algorithm, federation, task, self.settings, self.grid, config)
        return Run(self.algorithm, federation, task, self.settings, config)


def planned(words: list[str]) -> Plan:
    """The plan behind the words of `coterie run`: names first, then key=value.

    >>> plan = planned(["ifca", "rotated-digits", "clients=40"])
    >>> plan.algorithm.k, plan.federation.clients, plan.settings.rounds
    (4, 40, 60)
    """
    names = [word for word in words if "=" not in word]
    pairs = [word for word in words if "=" in word]
    if len(names) > 2:
        raise SettingError(f"settings are written key=value, got {names[2]}")
    algorithm_name, federation_name = [
        *names,
        *[DEFAULT_ALGORITHM, DEFAULT_FEDERATION][len(names) :],
    ]
    algorithm = named("algorithm", algorithm_name, ALGORITHMS)
    word, path = federation_name, None
    if names_a_file(word):
        federation_name, path = "table", Path(word).absolute()
    federation = named("federation", federation_name, FEDERATIONS)
    owners = [algorithm, federation, RunSettings]
    own = setting_names(*owners)
    special = getattr(federation, "suggests_for", {}).get(algorithm_name, {})
    suggested = {**federation.suggests, **special, **getattr(algorithm, "suggests", {})}
    values = {key: value for key, value in suggested.items() if key in own}
    plain, grid = parse_grid(pairs, algorithm)
    values |= parse(plain, owners) | ({} if path is None else {"path": str(path)})
    twice = set(grid) & set(parse(plain, owners))
    if twice:
        raise SettingError(f"`{min(twice)}` is given twice")
    values |= {name: several[0] for name, several in grid.items()}
    command = shlex.join(["coterie", "run", algorithm_name, word, *pairs])
    plan = Plan(
        algorithm_name,
        federation_name,
        make(algorithm, values),
        make(federation, values),
        make(RunSettings, values),
        command,
        grid,
    )
    list(grid_points(plan.algorithm, grid))  # refuses a value that the algorithm does not take
    return plan


def names_a_file(word: str) -> bool:
    """Whether a word of the command line is a table or folder of the user's, not a federation."""
    return word not in FEDERATIONS and (Path(word).suffix in TABLES or Path(word).exists())


def planned_again(config: dict[str, Any], words: list[str]) -> Plan:
    """The plan of an interrupted run; words that ask for anything else are refused."""
    try:
        names = [config["algorithm"], config["federation"]]
        values = config["settings"]
        owners = [
            named("algorithm", names[0], ALGORITHMS),
            named("federation", names[1], FEDERATIONS),
            RunSettings,
        ]
        if set(values) != set(setting_names(*owners)):
            raise CheckpointError(
                f"config.json is of another version of coterie: {config['coterie']}"
            )
        plain, grid = parse_grid([f"{n}={value}" for n, value in values.items()], owners[0])
        found = parse(plain, owners)
        for name, value in values.items():
            if (grid_text(grid[name]) if name in grid else found[name]) != value:
                raise CheckpointError(f"config.json has an impossible value for {name}: {value}")
        first = found | {name: several[0] for name, several in grid.items()}
        algorithm, federation, settings = (make(owner, first) for owner in owners)
        command = str(config["command"])
        plan = Plan(names[0], names[1], algorithm, federation, settings, command, grid)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"config.json does not describe a run: {error!r}") from error
    asked = [word for word in words if "=" not in word]
    if len(asked) > 2:
        raise SettingError(f"settings are written key=value, got {asked[2]}")
    for word, name in zip(asked, names, strict=False):
        if word != name:
            raise SettingError(f"a resumed run keeps its settings: it runs {name}, got {word}")
    plain, several = parse_grid([word for word in words if "=" in word], owners[0])
    wanted = parse(plain, owners) | {name: grid_text(each) for name, each in several.items()}
    for key, value in wanted.items():
        if values[key] != value:
            raise SettingError(
                f"a resumed run keeps its settings: `{key}` is {values[key]}, got {value}"
            )
    return plan
