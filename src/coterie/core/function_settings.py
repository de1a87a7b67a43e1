"""Settings of a function: its parameters, read off its signature.

A plain function may stand where a settings class is expected: one that returns a federation, or
one that builds a network. Some of its parameters are given by the run (`seed`; `shape` and
`outputs`), the others are its settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, field, make_dataclass
from functools import cache
from typing import Any

from coterie.core.errors import SettingError
from coterie.core.imports import read_annotations
from coterie.core.settings import Settings, check_setting_type

UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def settings_of_function(
    function: Callable[..., Any], method: str, given: tuple[str, ...]
) -> type[Any]:
    """A settings class whose method `method(*given)` calls the function.

    Of what is `given` the function is handed what it has a parameter for.

    >>> def scaled(outputs: int, width: int = 3) -> int:
    ...     return outputs * width
    >>> kind = settings_of_function(scaled, "module", ("shape", "outputs"))
    >>> kind(width=4).module([8], 2)
    8
    """
    parameters = inspect.signature(function).parameters
    own = [p for p in parameters.values() if p.name not in given and p.kind not in UNNAMED]
    annotated = read_annotations(function.__init__ if inspect.isclass(function) else function)
    name = getattr(function, "__name__", type(function).__name__)

    def call(self: Any, *values: Any, **named: Any) -> Any:
        handed = dict(zip(given, values, strict=False)) | named
        wanted = {name: value for name, value in handed.items() if name in parameters}
        return function(**wanted, **asdict(self))

    def reduce(self: Any) -> tuple[Any, ...]:
        # The class is made here and cannot be found by its name.
        return restore_settings, (function, method, given, asdict(self))

    return make_dataclass(
        name,
        [parameter_field(name, p, annotated.get(p.name)) for p in own],
        bases=(Settings,),
        namespace={
            method: call,
            "__reduce__": reduce,
            "__doc__": inspect.getdoc(function) or "",
            "__module__": getattr(function, "__module__", __name__),
            "suggests": getattr(function, "suggests", {}),
        },
        frozen=True,
        kw_only=True,
    )


def check_method(path: str, owner: type[Any], method: str, given: tuple[str, ...]) -> None:
    """Refuse a class whose method cannot be called with what it is given."""
    function = inspect.getattr_static(owner, method, None)
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    try:
        signature.bind(None, *given)
    except TypeError:
        raise SettingError(
            f"{method} of {path} must take ({', '.join(['self', *given])}), got {signature}"
        ) from None


def parameter_field(owner: str, parameter: inspect.Parameter, annotated: Any) -> Any:
    """A parameter as the field of a settings class: its name, type and default."""
    empty = inspect.Parameter.empty
    if annotated is None and parameter.default is empty:
        raise SettingError(f"the parameter `{parameter.name}` of {owner} needs a type or a default")
    kind = type(parameter.default) if annotated is None else annotated
    check_setting_type(owner, parameter.name, kind)
    if parameter.default is empty:
        return parameter.name, kind, field()
    return parameter.name, kind, field(default=parameter.default)


def restore_settings(
    function: Callable[..., Any], method: str, given: tuple[str, ...], values: dict[str, Any]
) -> Any:
    """The settings of a function that were pickled."""
    return settings_of_function(function, method, given)(**values)
