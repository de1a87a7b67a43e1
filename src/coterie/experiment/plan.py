"""The plan of a run: an algorithm, a federation and a network by name, and all their settings."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.algorithm import algorithm_for_rounds, traits_of
from coterie.core.errors import CheckpointError, DataError, SettingError, did_you_mean
from coterie.core.settings import added_settings
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.data.holdout import hold_out
from coterie.experiment.grid import Grid, grid_points
from coterie.experiment.run import Run
from coterie.experiment.run_result import run_config
from coterie.experiment.selection import why_not_automatic
from coterie.experiment.settings import (
    ATTACK_OPTIONS,
    AutomaticValues,
    NetworkChoice,
    RunSettings,
    check_attack_given,
    check_no_clash,
    grid_text,
    make_settings,
    parse_grid,
    parse_settings,
    setting_names,
    shadowed_settings,
    split_words,
)
from coterie.registry import full_name, resolve, suggestions
from coterie.shelves import FEDERATIONS, entry_points_of
from coterie.starts import settled_start
from coterie.tasks.defaults import default_task, prepare_task, weigh_classes

TABLES = (".csv", ".tsv", ".gz", ".parquet", ".feather", ".arrow")
DEFAULT_ALGORITHM, DEFAULT_FEDERATION = "ifca", "rotated-digits"


def load(name: str, *, seed: int = 0, **settings: Any) -> tuple[Federation, Task]:
    """A federation by its name, and its task with the network that it suggests.

    The name is built in, offered by an installed package, or `package.module:name`.

    Settings are those of the federation and of the network, which `network` replaces.

    >>> federation, task = load("rotated-digits", clients=8, hidden=50)
    >>> len(federation), federation.cluster.tolist(), task.layout.size
    (8, [0, 0, 1, 1, 2, 2, 3, 3], 3760)
    """
    federation_class = resolve("federation", name)
    suggested = suggestions(federation_class)
    network_class = resolve("network", settings.get("network") or suggested["network"])
    suggested = understood(suggested, network_class)
    check_no_clash([federation_class, network_class, NetworkChoice])
    known = setting_names(federation_class, network_class, NetworkChoice)
    for key in settings:
        if key not in known:
            raise SettingError(f"{name} has no setting named {key}{did_you_mean(key, known)}")
    federation = build_federation(name, make_settings(federation_class, settings), seed)
    return federation, default_task(federation, make_settings(network_class, suggested | settings))


def build_federation(name: str, settings: Any, seed: int) -> Federation:
    """The federation of some settings; refuse in one sentence what cannot be built."""
    try:
        federation = settings.build(seed)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name} cannot be built: {reason}") from error
    if not isinstance(federation, Federation):
        raise DataError(f"{name} must build a Federation, got {type(federation).__name__}")
    return federation


class Owners(NamedTuple):
    """The classes that the settings of a run belong to."""

    algorithm: type[Any]
    federation: type[Any]
    network: type[Any]
    choice: type[Any] = NetworkChoice
    run: type[Any] = RunSettings


def find_owners(algorithm: str, federation: str, network: str = "") -> Owners:
    """The classes behind names; without a network's name, that which is suggested."""
    kinds = resolve("federation", federation), resolve("algorithm", algorithm)
    network = network or suggestions(*kinds, full_name("algorithm", algorithm))["network"]
    owners = Owners(kinds[1], kinds[0], resolve("network", network))
    check_no_clash(owners)
    return owners


class Plan(NamedTuple):
    """What is to be run: three names and the settings of their owners."""

    algorithm_name: str
    federation_name: str
    network_name: str
    algorithm: Any
    federation: Any
    network: Any
    settings: RunSettings
    command: str
    grid: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012 - settings with several values
    asks_for_network: bool = False  # whether a word of the user's names it, in a run that is new
    says: str = ""  # what is decided in the user's place, in a sentence

    @property
    def network_grid(self) -> dict[str, tuple[Any, ...]]:
        """The settings of the network that have several values."""
        own = setting_names(type(self.network))
        return {name: values for name, values in self.grid.items() if name in own}

    def config(self) -> dict[str, Any]:
        """What config.json keeps: enough to make the same plan again."""
        names = self.algorithm_name, self.federation_name
        resplits = bool(getattr(self.federation, "resplits", True))
        data = {"seed": self.settings.data_seed, "resplits": resplits}
        return run_config(*names, self.values(), self.command, data)

    def values(self) -> dict[str, Any]:
        """Every setting with its value."""
        several = {
            name: grid_text(values, "/" if name in self.network_grid else ",")
            for name, values in self.grid.items()
        }
        own = {**asdict(self.algorithm), **asdict(self.federation)}
        own |= {"network": self.network_name, **asdict(self.network)}
        of_run = {name: value for name, value in asdict(self.settings).items() if name not in own}
        return own | of_run | several

    def build(self) -> Federation:
        """The federation by its name and settings."""
        return build_federation(self.federation_name, self.federation, self.settings.data_seed)

    def hold_out(self, federation: Federation) -> Federation:
        """A federation with the validation part that the run asks for."""
        return hold_out(federation, self.settings.validation, self.settings.data_seed)

    def prepare(self, federation: Federation) -> tuple[Federation, Task]:
        """A federation as the algorithm sees it, and what it learns there."""
        named = self.network_name if self.asks_for_network else ""
        found, task = prepare_task(self.algorithm, federation, self.network, named)
        return found, weigh_classes(task, federation, self.settings.class_weight)

    def run(self, config: dict[str, Any]) -> Run | Grid:
        """Load the data and make ready to run: one run, or copies for several starts or values."""
        federation, task = self.prepare(self.hold_out(self.build()))
        if self.grid or self.settings.starts > 1:
            tasks = [
                (point, self._replace(network=network).prepare(federation)[1])
                for point, network in grid_points(self.network, self.network_grid)
            ]
            return Grid(self.algorithm, federation, tasks, self.settings, self.grid, config)
        return Run(self.algorithm, federation, task, self.settings, config)


def make_plan(words: list[str], *, alone: bool = False) -> Plan:
    """The plan behind the words of `coterie run`: names first, then key=value.

    With `alone` nothing that was not asked for makes several runs of it.

    >>> plan = make_plan(["ifca", "rotated-digits", "clients=40"])
    >>> plan.algorithm.k, plan.federation.clients, plan.network.hidden, plan.settings.rounds
    (4, 40, 100, 60)
    """
    names, pairs = split_words(words)
    algorithm, word = [*names, *[DEFAULT_ALGORITHM, DEFAULT_FEDERATION][len(names) :]]
    path = {"path": str(Path(word).absolute())} if names_a_file(word) else {}
    federation = "table" if path else word
    network = dict(pair.split("=", 1) for pair in pairs).get("network", "")
    owners = find_owners(algorithm, federation, network)
    command = shlex.join(["coterie", "run", algorithm, word, *pairs])
    algorithm, federation = full_name("algorithm", algorithm), full_name("federation", federation)
    suggested = suggestions(owners.federation, owners.algorithm, algorithm)
    suggested = understood(suggested, owners.network)
    own = setting_names(*owners)
    plain, grid = parse_grid(pairs, owners.algorithm, owners.network)
    given = parse_settings(plain, owners)
    twice = set(grid) & set(given)
    if twice:
        raise SettingError(f"`{min(twice)}` is given twice")
    values = {key: value for key, value in suggested.items() if key in own} | given | path
    values["network"] = full_name("network", network or suggested["network"])
    plan = assemble_plan(algorithm, federation, owners, values, grid, command)
    check_attack_given(set(given) - shadowed_settings(owners))
    if federation == "table":
        plan = with_clusters_found(plan, {*given, *grid}, alone=alone)
    of_method = {name: each for name, each in plan.grid.items() if name not in plan.network_grid}
    for owner, several in ((plan.algorithm, of_method), (plan.network, plan.network_grid)):
        list(grid_points(owner, several))  # refuses a value that it does not take
    return plan._replace(asks_for_network=bool(network))


def understood(suggested: dict[str, Any], network: type[Any]) -> dict[str, Any]:
    """What is suggested, without the values that only another network would take.

    >>> understood({"hidden": "auto", "rounds": 9}, resolve("network", "realnvp"))
    {'rounds': 9}
    >>> understood({"hidden": "auto", "rounds": 9}, resolve("network", "mlp"))
    {'hidden': 'auto', 'rounds': 9}
    """
    refused = set()
    for name in set(suggested) & set(setting_names(network)):
        try:
            make_settings(network, {name: suggested[name]})
        except SettingError:
            refused.add(name)
    return {name: value for name, value in suggested.items() if name not in refused}


def with_clusters_found(plan: Plan, given: Collection[str], *, alone: bool) -> Plan:
    """The plan of a run on a table of the user's, whose k is found where nobody said it.

    Where it cannot be, the algorithm's default is taken, and the plan says why. `alone` is of a run
    that can only be one.
    """
    name = traits_of(plan.algorithm).clusters
    if not name or name in given:
        return plan
    held_out = plan.settings.validation > 0
    reason = why_not_automatic(plan.algorithm, plan.settings, validated=held_out)
    if alone or reason:
        value = getattr(plan.algorithm, name)
        where = f": it must be given {reason}" if reason else ""
        return plan._replace(says=f"`{name}` is not given, so {name}={value} is taken{where}")
    values = AutomaticValues()
    first = replace(plan.algorithm, **{name: values[0]})
    says = f"`{name}` is not given, so {values[0]} to {values[-1]} are tried ({name}=auto)"
    return plan._replace(algorithm=first, grid={**plan.grid, name: values}, says=says)


def names_a_file(word: str) -> bool:
    """Whether a word of the command line is a table or folder of the user's, not a federation."""
    if word in FEDERATIONS or not (Path(word).suffix in TABLES or Path(word).exists()):
        return False
    return word not in entry_points_of("federation")


def assemble_plan(
    algorithm: str,
    federation: str,
    owners: Owners,
    values: dict[str, Any],
    grid: dict[str, tuple[Any, ...]],
    command: str,
) -> Plan:
    """The plan with these values; of settings with several it holds the first."""
    values = values | {name: several[0] for name, several in grid.items()}
    shadowed = shadowed_settings(owners)
    settings = make_settings(
        RunSettings, {name: value for name, value in values.items() if name not in shadowed}
    )
    options = shadowed & ATTACK_OPTIONS
    if options and settings.attack != "none":
        raise SettingError(
            f"`{min(options)}` is an option of `attack` and a setting of {algorithm}, "
            f"{federation} or {values['network']}, which cannot be attacked: rename it there"
        )
    kind = make_settings(owners.algorithm, values)
    return Plan(
        algorithm,
        federation,
        values["network"],
        settled_start(algorithm_for_rounds(kind, settings.rounds), settings.wary),
        make_settings(owners.federation, values),
        make_settings(owners.network, values),
        settings,
        command,
        grid,
    )


def complete_settings(algorithm: str, federation: str, values: dict[str, Any]) -> dict[str, Any]:
    """The settings in a config.json.

    Older ones name no network, because a federation had only one: that which it suggests. And they
    lack settings that were added later, which had their defaults.
    """
    if "network" not in values:
        suggested = suggestions(resolve("federation", federation))
        network = make_settings(resolve("network", suggested["network"]), suggested)
        values = {"network": suggested["network"], **asdict(network), **values}
    for owner in find_owners(algorithm, federation, values["network"]):
        values = {**added_settings(owner), **values}
    return values


def plan_again(config: dict[str, Any], words: list[str]) -> Plan:
    """The plan of a run that goes on; words that ask for more than other rounds are refused."""
    try:
        algorithm, federation = config["algorithm"], config["federation"]
        values = complete_settings(algorithm, federation, config["settings"])
        owners = find_owners(algorithm, federation, values["network"])
        if set(values) != set(setting_names(*owners)):
            raise CheckpointError(
                f"config.json is of another version of coterie, {config['coterie']}, or of "
                f"{algorithm}, {federation} or {values['network']}"
            )
        words_before = [f"{n}={value}" for n, value in values.items()]
        plain, grid = parse_grid(words_before, owners.algorithm, owners.network)
        found = parse_settings(plain, owners)
        command = str(config["command"])
        plan = assemble_plan(algorithm, federation, owners, found, grid, command)
        several = plan.values()
        for name, value in values.items():
            if (several[name] if name in grid else found[name]) != value:
                raise CheckpointError(f"config.json has an impossible value for {name}: {value}")
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"config.json does not describe a run: {error!r}") from error
    rounds = check_same_plan(plan, owners, words)
    if rounds == plan.settings.rounds:
        return plan
    return plan._replace(
        algorithm=algorithm_for_rounds(plan.algorithm, rounds),
        settings=replace(plan.settings, rounds=rounds),
        command=with_rounds(plan.command, rounds),
    )


def with_rounds(command: str, rounds: int) -> str:
    """The command of a run with another number of rounds.

    >>> with_rounds("coterie run ifca rounds=20 k=4", 50)
    'coterie run ifca k=4 rounds=50'
    """
    words = [word for word in shlex.split(command) if not word.startswith("rounds=")]
    return shlex.join([*words, f"rounds={rounds}"]) if words else ""


def check_same_plan(plan: Plan, owners: Owners, words: list[str]) -> int:
    """Refuse words of the command line that ask for another run than the plan's.

    Only its rounds may change: how many it is to have.
    """
    asked, pairs = split_words(words)
    names = {"algorithm": plan.algorithm_name, "federation": plan.federation_name}
    for word, (kind, name) in zip(asked, names.items(), strict=False):
        if word != name and full_name(kind, word) != name:
            raise SettingError(f"a resumed run keeps its settings: it runs {name}, got {word}")
    plain, several = parse_grid(pairs, owners.algorithm, owners.network)
    wanted = parse_settings(plain, owners)
    own = setting_names(owners.network)
    wanted |= {n: grid_text(each, "/" if n in own else ",") for n, each in several.items()}
    if "network" in wanted:
        wanted["network"] = full_name("network", wanted["network"])
    values = plan.values()
    for key, value in wanted.items():
        if values[key] != value and key != "rounds":
            raise SettingError(
                f"a resumed run keeps its settings: `{key}` is {values[key]}, got {value}"
            )
    rounds: int = wanted.get("rounds", plan.settings.rounds)
    return rounds
