"""Settings: `key=value` words, typed and checked against frozen dataclasses.

One name is one quantity everywhere, so the settings of the algorithm, the federation, the
network and the run share one space without prefixes. What a setting means is written in its field
(`core/settings.py`), so that the class and `coterie describe` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from coterie.channel.attacks import AttackSettings
from coterie.channel.defences import DefenceSettings
from coterie.core.algorithm import traits_of
from coterie.core.errors import SettingError, did_you_mean
from coterie.core.settings import Settings, setting
from coterie.core.validate import OneOf, above, at_least, below_one, fraction, in_range, one_of
from coterie.engine.devices import check_device
from coterie.evaluation.metrics import METRICS


@dataclass(frozen=True, kw_only=True)
class PlainRunSettings(Settings):
    """Settings of a run without attacks and defences."""

    rounds: int = setting(100, "rounds T", at_least(1))
    seed: int = setting(0, "all randomness, of data and training, comes from it", at_least(0))
    split_seed: int = setting(
        -1, "seed by which data are drawn and split; -1: seed", at_least(-1), added=True
    )
    starts: int = setting(
        1,
        "independent starts; the best by validation loss, or else training loss, is kept",
        in_range(1, 1000),
    )
    fraction: float = setting(1.0, "share of the clients that take part in a round", fraction)
    per_round: int = setting(
        0, "clients that take part in a round, in place of a fraction; 0: by fraction", at_least(0)
    )
    sampling: str = setting(
        "fixed",
        "participants; fixed: so many in each round, poisson: so many on average, each by itself",
        one_of("fixed", "poisson"),
        added=True,
    )
    lost: float = setting(0.0, "probability that a client's reply is lost", below_one)
    withhold: str = setting(
        "nothing",
        "what the server is not told; clusters: who is in which cluster",
        one_of("nothing", "clusters"),
        added=True,
    )
    protocol: str = setting(
        "auto", "data by which a client chooses a model", one_of("auto", "train-loss", "test-loss")
    )
    validation: float = setting(
        0.0,
        "share of a client's training samples that is held out, to end training and choose by",
        below_one,
        added=True,
    )
    early_stopping: int = setting(
        0,
        "evaluations without a lower validation loss after which training ends; 0: it does not",
        at_least(0),
        added=True,
    )
    class_weight: str = setting(
        "none",
        "what classes count in training; balanced: all the same, however rare",
        one_of("none", "balanced"),
        added=True,
    )
    finetune: int = setting(
        0,
        "local epochs after the last round, by which each client makes a model of its own; 0: none",
        at_least(0),
        added=True,
    )
    finetune_lr: float = setting(0.0, "step size of these epochs; 0: lr", at_least(0), added=True)
    finetune_for: str = setting(
        "all",
        "who uses the model of its own; outliers: those whose model moved far",
        one_of("all", "outliers"),
        added=True,
    )
    finetune_distance: float = setting(
        3.0, "how far that is, in medians of the distance over all clients", above(0), added=True
    )
    metric: str = setting(
        "auto",
        "by which a run is judged; auto: accuracy, AUC if one of two classes is rare, R2, or loss",
        OneOf(("auto", *METRICS)),
        added=True,
    )
    evaluate: int = setting(1, "rounds between two evaluations", at_least(1))
    checkpoint: int = setting(0, "rounds between checkpoints; 0: in 5 % of the time", at_least(0))
    chunk: int = setting(0, "clients simulated at a time; 0: by the model's size", at_least(0))
    threads: int = setting(
        0,
        "threads of PyTorch; 0: as many as help, fewer on a busy machine",
        at_least(0),
        added=True,
    )
    device: str = setting("cpu", "where client steps run: cpu, cuda, or cuda:N for one of several")

    @property
    def data_seed(self) -> int:
        """The seed by which data are drawn and split."""
        return self.seed if self.split_seed < 0 else self.split_seed

    @property
    def withheld(self) -> bool:
        """Whether the server is not told which client is in which cluster."""
        return self.withhold == "clusters"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)
        if self.finetune_for != "all" and not self.finetune:
            raise SettingError(
                f"`finetune_for` of RunSettings must be all where `finetune` is 0, for nobody "
                f"fine-tunes a model, got {self.finetune_for}"
            )


@dataclass(frozen=True, kw_only=True)
class RunSettings(DefenceSettings, AttackSettings, PlainRunSettings):
    """Settings of a run, whatever the algorithm and the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.withheld and self.looks_closely:
            raise SettingError(
                "`withhold` must be nothing where the server looks at the updates of single "
                f"clients, as {self.looks_closely} does, got {self.withhold}"
            )
        if self.attack != "none" and self.starts > 1:
            raise SettingError(f"`starts` must be 1 under an attack, got {self.starts}")

    @property
    def wary(self) -> bool:
        """Whether some clients may be adversaries: the run attacks or defends."""
        return self.defends or self.attack != "none"


AUTO = "auto"  # the value of k where held-out samples are to say it
# An algorithm or data of a user's own may have settings of these names, if nobody attacks.
ATTACK_OPTIONS = frozenset(field.name for field in fields(AttackSettings)) - {"attack"}
# Data that split themselves have this setting in place of the run.
YIELDED = ATTACK_OPTIONS | {"class_weight", "validation", "early_stopping"}


def check_attack_given(given: Collection[str]) -> None:
    """Refuse options of an attack among settings that name none: they would do nothing."""
    options = ATTACK_OPTIONS & set(given)
    if options and "attack" not in given:
        raise SettingError(
            f"`{min(options)}` says how clients attack: say which attack it is of, as in "
            "attack=boosted"
        )


@dataclass(frozen=True, kw_only=True)
class NetworkChoice(Settings):
    """Which network is trained; its own settings are settings of the run as well."""

    network: str = setting("", "network that is trained; empty: what the federation suggests")


class Setting(NamedTuple):
    """One field of a settings class."""

    name: str
    type: type
    default: Any
    meaning: str


@cache
def settings_of(owner: type) -> tuple[Setting, ...]:
    """The settings of a dataclass with their types, defaults and meanings.

    >>> settings_of(RunSettings)[0]
    Setting(name='rounds', type=<class 'int'>, default=100, meaning='rounds T')
    """
    types = get_type_hints(owner)
    return tuple(
        Setting(field.name, types[field.name], field.default, field.metadata.get("meaning", ""))
        for field in fields(owner)
    )


def setting_names(*owners: type) -> list[str]:
    """The names of the settings of some dataclasses."""
    return [setting.name for owner in owners for setting in settings_of(owner)]


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words of a command line: at most two names, and `key=value` pairs.

    >>> split_words(["ifca", "k=2"])
    (['ifca'], ['k=2'])
    """
    names = [word for word in words if "=" not in word]
    if len(names) > 2:
        raise SettingError(f"settings are written key=value, got {names[2]}")
    return names, [word for word in words if "=" in word]


def check_no_clash(owners: Iterable[type]) -> None:
    """Refuse classes that share the name of a setting: both would get one value.

    What the run yields to others is theirs: see `shadowed_settings`.
    """
    owner_of: dict[str, str] = {}
    for owner in owners:
        for name in setting_names(owner):
            if owner is RunSettings and name in YIELDED:
                continue
            if name in owner_of:
                raise SettingError(
                    f"`{name}` is a setting of {owner_of[name]} and of {owner.__name__}, "
                    "which cannot run together: rename one"
                )
            owner_of[name] = owner.__name__


def shadowed_settings(owners: Iterable[type]) -> frozenset[str]:
    """The settings that a run yields to other owners, which have some of the same names."""
    others = setting_names(*(owner for owner in owners if owner is not RunSettings))
    return YIELDED & frozenset(others)


def parse_settings(words: Iterable[str], owners: Iterable[type]) -> dict[str, Any]:
    """Values of `key=value` words, each of the type that one of `owners` gives the key.

    >>> parse_settings(["rounds=20", "fraction=0.5"], [RunSettings])
    {'rounds': 20, 'fraction': 0.5}
    """
    known: dict[str, Setting] = {}
    for owner in owners:
        known = {setting.name: setting for setting in settings_of(owner)} | known
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise SettingError(f"settings are written key=value, got {word}")
        if name not in known:
            near = did_you_mean(name, known) or f" (settings: {', '.join(sorted(known))})"
            raise SettingError(f"no setting is named {name}{near}")
        if name in values:
            raise SettingError(f"`{name}` is given twice")
        values[name] = convert_setting(known[name], text)
    return values


class AutomaticValues(tuple[int, ...]):
    """The values of k that are tried where it is to be found (`k=auto`): 1 to 6."""

    def __new__(cls) -> AutomaticValues:
        return super().__new__(cls, range(1, 7))


def parse_grid(
    words: list[str], owner: type, network: type | None = None
) -> tuple[list[str], dict[str, tuple[Any, ...]]]:
    """The words that give one value, and the values of those that give several.

    Those of `owner`, the algorithm, are numbers with commas between. Those of the `network` have
    slashes between, for a comma separates hidden layers.

    >>> from coterie.algorithms.ifca import IFCA
    >>> parse_grid(["k=4", "lr=0.1,1"], IFCA)
    (['k=4'], {'lr': (0.1, 1.0)})
    >>> parse_grid(["k=auto"], IFCA)
    ([], {'k': (1, 2, 3, 4, 5, 6)})
    >>> from coterie.networks import Mlp
    >>> parse_grid(["hidden=0/16/64,32"], IFCA, Mlp)
    ([], {'hidden': (0, 16, '64,32')})
    """
    known = {setting.name: setting for setting in settings_of(owner)}
    of_network = {} if network is None else {each.name: each for each in settings_of(network)}
    plain: list[str] = []
    grid: dict[str, tuple[Any, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        if text == AUTO and name == traits_of(owner).clusters and name not in grid:
            grid[name] = AutomaticValues()
            continue
        setting, mark = known.get(name), ","
        if setting is None:
            setting, mark = of_network.get(name), "/"
        numeric = setting is not None and setting.type in (int, float, int | str)
        if setting is None or not numeric or mark not in text:
            plain.append(word)
            continue
        if name in grid:
            raise SettingError(f"`{name}` is given twice")
        grid[name] = tuple(convert_setting(setting, part) for part in text.split(mark))
        if len(set(grid[name])) < len(grid[name]):
            raise SettingError(f"`{name}` is given the same value twice: {text}")
    return plain, grid


def grid_text(values: Sequence[Any], mark: str = ",") -> str:
    """Several values of a setting as they are written on the command line.

    >>> grid_text((0.1, 1.0)), grid_text(AutomaticValues()), grid_text((0, "64,32"), "/")
    ('0.1,1.0', 'auto', '0/64,32')
    """
    if isinstance(values, AutomaticValues):
        return AUTO
    return mark.join(map(str, values))


def convert_setting(setting: Setting, text: str) -> Any:
    """The text of a setting as its type."""
    if setting.type is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise SettingError(f"`{setting.name}` must be true or false, got {text}")
    if setting.type == (int | str):  # a whole number, or else a word
        return int(text) if text.isdecimal() else text
    kinds = {int: "a whole number", float: "a number", str: "text"}
    try:
        value = setting.type(text)
        if setting.type is int and abs(value) >= 2**53:
            raise SettingError(f"`{setting.name}` must be smaller than 2^53, got {text[:30]}")
        return value
    except ValueError:
        raise SettingError(
            f"`{setting.name}` must be {kinds[setting.type]}, got {text or 'nothing'}"
        ) from None


def make_settings(owner: type, values: Mapping[str, Any]) -> Any:
    """An instance of a settings class from those of `values` that are its own.

    A whole number becomes a real one where the setting is one, also in a default (`lr: float = 1`),
    so that a run and the same run read from its config.json have equal settings.
    """
    found: dict[str, Any] = {}
    for each, field in zip(settings_of(owner), fields(owner), strict=True):
        value = values.get(each.name, each.default)
        if value is MISSING and field.default_factory is MISSING:
            raise SettingError(
                f"`{each.name}` of {owner.__name__} has no default: say {each.name}="
            )
        if value is not MISSING:
            whole = each.type is float and isinstance(value, int) and not isinstance(value, bool)
            found[each.name] = float(value) if whole else value
    return owner(**found)
