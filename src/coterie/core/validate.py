"""Rules of settings: each refuses a value in one sentence that states the rule and the value.

`setting(2, "clusters", at_least(1))` gives a setting its rule. A rule may also be applied by hand,
as in `at_least(1)(owner, "k")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from coterie.core.errors import SettingError, did_you_mean
from coterie.core.settings import Rule


def at_least(bound: float) -> Rule:
    """A finite number of its field's type that is not below `bound`.

    >>> from types import SimpleNamespace
    >>> at_least(1)(SimpleNamespace(k=0), "k")
    Traceback (most recent call last):
    ...
    coterie.core.errors.SettingError: `k` of SimpleNamespace must be at least 1, got 0
    """
    return numeric(lambda value: value >= bound, f"be at least {bound:g}", "")


def above(bound: float) -> Rule:
    """A number greater than `bound`."""
    return numeric(lambda value: value > bound, f"be greater than {bound:g}", "")


def between(low: float, high: float) -> Rule:
    """A number between two bounds, which it may not reach."""
    return numeric(lambda value: low < value < high, f"lie between {low:g} and {high:g}", "g")


def in_range(low: float, high: float) -> Rule:
    """A number from `low` to `high`, which it may reach."""

    def check(owner: object, name: str) -> None:
        at_least(low)(owner, name)
        numeric(lambda value: value <= high, f"be at most {high:g}", "")(owner, name)

    return check


def below_one(owner: object, name: str) -> None:
    """A probability or a share that is not all: at least 0 and below 1."""
    numeric(lambda value: 0 <= value < 1, "be at least 0 and below 1", "g")(owner, name)


def fraction(owner: object, name: str) -> None:
    """A share of something: above 0 and at most 1."""
    numeric(lambda value: 0 < value <= 1, "be above 0 and at most 1", "g")(owner, name)


def numeric(holds: Callable[[float], bool], rule: str, form: str) -> Rule:
    """A rule for a number, which the sentence shows in a format of its own."""

    def check(owner: object, name: str) -> None:
        value = finite_number(owner, name)
        if not holds(value):
            kind = type(owner).__name__
            raise SettingError(f"`{name}` of {kind} must {rule}, got {value:{form}}")

    return check


@dataclass(frozen=True)
class OneOf:
    """One of some words, which the meaning of the setting lists."""

    choices: Collection[str]

    def __call__(self, owner: object, name: str) -> None:
        value = getattr(owner, name)
        if value not in self.choices:
            raise SettingError(
                f"`{name}` of {type(owner).__name__} must be one of {', '.join(self.choices)}, "
                f"got {value}{did_you_mean(str(value), self.choices)}"
            )


def one_of(*choices: str) -> OneOf:
    """One of some words."""
    return OneOf(choices)


def finite_number(owner: object, name: str) -> float:
    """A setting that must be a finite number, and a whole one where its field says `int`."""
    value: Any = getattr(owner, name)
    types = {field.name: field.type for field in fields(owner)} if is_dataclass(owner) else {}
    whole = types.get(name) in (int, "int")
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value):
        kind = "a whole number" if whole else "a finite number"
        clusters = getattr(getattr(owner, "traits", None), "clusters", "")
        way = f'; coterie.simulate(..., grid={{"{name}": "auto"}}) finds it'
        way = way if value == "auto" and name == clusters else ""
        raise SettingError(f"`{name}` of {type(owner).__name__} must be {kind}, got {value!r}{way}")
    found: float = value
    return found


def at_most_clients(owner: object, name: str, clients: int) -> None:
    """Refuse a setting that is larger than the number of clients."""
    value = getattr(owner, name)
    if value > clients:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be at most the number of clients, {clients}, "
            f"got {value}"
        )


def at_least_as_many(owner: object, name: str, other: str) -> None:
    """Refuse a setting that is smaller than another one of the same owner."""
    value, bound = getattr(owner, name), getattr(owner, other)
    if value < bound:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be at least `{other}`, {bound}, got {value}"
        )
