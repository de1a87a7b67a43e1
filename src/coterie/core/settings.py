"""A setting: a field of a frozen dataclass with its default, its meaning and its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, asdict, field, fields
from typing import Any, Self

from coterie.core.errors import SettingError, did_you_mean

SCALARS = (bool, int, float, str)  # what a setting can be
Rule = Callable[[object, str], None]  # refuses a value of the named setting, see core/validate.py


def setting(
    default: Any,
    meaning: str,
    rule: Rule | None = None,
    *,
    added: bool = False,
    before: Any = MISSING,
) -> Any:
    """A field of a settings class; `coterie describe` prints what it means.

    A setting that was `added` later is not in the folders of earlier runs: these had its default,
    or what it was `before`.

    >>> from dataclasses import dataclass
    >>> from coterie.core.validate import at_least
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine(Settings):
    ...     k: int = setting(2, "clusters", at_least(1))
    >>> Mine().k, fields(Mine)[0].metadata["meaning"]
    (2, 'clusters')
    >>> Mine(k=0)
    Traceback (most recent call last):
    ...
    coterie.core.errors.SettingError: `k` of Mine must be at least 1, got 0
    """
    choices = getattr(rule, "choices", ())
    text = f"{meaning} ({', '.join(choices)})" if choices else meaning
    metadata = {"meaning": text, "rule": rule}
    if added:
        metadata["before"] = default if before is MISSING else before
    return field(default=default, metadata=metadata)


def added_settings(owner: type) -> dict[str, Any]:
    """The settings of a class that were added later, with what they were before."""
    return {f.name: f.metadata["before"] for f in fields(owner) if "before" in f.metadata}


def identifying_settings(settings: Any) -> dict[str, Any]:
    """The settings by which a run is known, so that one of before is known by the same.

    Those that were added later are left out where they are as before.
    """
    added = added_settings(type(settings))
    values: dict[str, Any] = asdict(settings)
    return {n: v for n, v in values.items() if n not in added or v != added[n]}


def check_setting_type(owner: str, name: str, kind: Any) -> None:
    """Refuse a setting that cannot be written as key=value."""
    if kind not in SCALARS:
        text = getattr(kind, "__name__", kind)
        raise SettingError(
            f"the setting `{name}` of {owner} must be of the type bool, int, float or str, "
            f"got {text}"
        )


class Settings:
    """Settings that are checked when they are made, each by the rule of its field.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine(Settings):
    ...     k: int = setting(2, "clusters")
    >>> Mine(4)
    Traceback (most recent call last):
    ...
    coterie.core.errors.SettingError: settings are given by name: Mine(k=4), got Mine(4)
    """

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        if "__dataclass_params__" not in vars(cls):
            return made  # may have a constructor of its own
        kind, names = cls.__name__, [each.name for each in fields(made)]  # type: ignore[arg-type]
        if values:
            own = next((name for name in names if name in cls.__annotations__), "...")
            first, given = repr(values[0]), ", ".join(map(repr, values))
            raise SettingError(
                f"settings are given by name: {kind}({own}={first}), got {kind}({given})"
            )
        for name in settings:
            if name not in names:
                near = did_you_mean(name, names) or f" (settings: {', '.join(names)})"
                raise SettingError(f"{kind} has no setting named {name}{near}")
        return made

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            rule = each.metadata.get("rule")
            if rule is not None:
                rule(self, each.name)
