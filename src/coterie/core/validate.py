"""Checks of settings, each called once, where an object with settings is made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from coterie.core.errors import SettingError, did_you_mean


def at_least(owner: object, name: str, bound: float) -> None:
    """Refuse a setting below `bound`, or one that is not a finite number of its field's type.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(k=0), "k", 1)
    Traceback (most recent call last):
    ...
    coterie.core.errors.SettingError: `k` of SimpleNamespace must be at least 1, got 0
    """
    value = finite_number(owner, name)
    if not value >= bound:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be at least {bound:g}, got {value}"
        )


def finite_number(owner: object, name: str) -> float:
    """A setting that must be a finite number, and a whole one where its field says `int`."""
    value: Any = getattr(owner, name)
    types = {field.name: field.type for field in fields(owner)} if is_dataclass(owner) else {}
    whole = types.get(name) in (int, "int")
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value):
        kind = "a whole number" if whole else "a finite number"
        raise SettingError(f"`{name}` of {type(owner).__name__} must be {kind}, got {value!r}")
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


def above(owner: object, name: str, bound: float) -> None:
    """Refuse a setting that is not greater than `bound`."""
    value = finite_number(owner, name)
    if not value > bound:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be greater than {bound:g}, got {value}"
        )


def between(owner: object, name: str, low: float, high: float) -> None:
    """Refuse a setting that does not lie between two bounds, which it may not reach."""
    value = finite_number(owner, name)
    if not low < value < high:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must lie between {low:g} and {high:g}, "
            f"got {value:g}"
        )


def fraction(owner: object, name: str) -> None:
    """Refuse a setting that is no share of something: it must be above 0 and at most 1."""
    value = finite_number(owner, name)
    if not 0 < value <= 1:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be above 0 and at most 1, got {value:g}"
        )


def one_of(owner: object, name: str, choices: Iterable[str]) -> None:
    """Refuse a setting that is none of `choices`."""
    value, choices = getattr(owner, name), list(choices)
    if value not in choices:
        raise SettingError(
            f"`{name}` of {type(owner).__name__} must be one of {', '.join(choices)}, "
            f"got {value}{did_you_mean(str(value), choices)}"
        )
