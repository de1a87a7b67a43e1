"""What a name means: an algorithm, a federation or a network; built in or somebody else's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any, get_type_hints

from torch import nn

from coterie.core.errors import SettingError, did_you_mean
from coterie.core.function_settings import check_method, settings_of_function
from coterie.core.imports import load_object
from coterie.core.settings import check_setting_type
from coterie.networks.given import settings_of_module
from coterie.shelves import DEFAULT_NETWORK, SHELVES, entry_points_of

# What a thing of each kind can do, and what it is given for it.
METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "algorithm": {
        "init": ("start",),
        "round": ("state", "clients"),
        "serve": ("state", "clients"),
    },
    "federation": {"build": ("seed",)},
    "network": {"module": ("shape", "outputs")},
}


def resolve(kind: str, name: str) -> type[Any]:
    """The settings class behind a name of this kind (algorithm, federation or network).

    A name is a built-in one, one that an installed package offers as an entry point of the group
    `coterie.algorithms`, `coterie.federations` or `coterie.networks`, or `package.module:name`. A
    function that makes a federation or a network becomes a settings class of its parameters, and a
    network that is there already one without settings.

    >>> resolve("network", "mlp").__name__
    'Mlp'
    >>> resolve("algorithm", "coterie.algorithms.ifca:IFCA").__name__
    'IFCA'
    """
    if name in SHELVES[kind]:
        return SHELVES[kind][name]
    path = object_path(kind, name)
    owner = AS_SETTINGS[kind](path, load_object(path))
    for method, given in METHODS[kind].items():
        check_method(path, owner, method, given)
    check_setting_types(path, owner)
    return owner


def full_name(kind: str, name: str) -> str:
    """The one name of what a name means: the built-in one, or `package.module:name` of its home.

    >>> full_name("algorithm", "coterie:IFCA"), full_name("network", "mlp")
    ('ifca', 'mlp')
    """
    if name in SHELVES[kind]:
        return name
    path = object_path(kind, name)
    return home_name(kind, load_object(path), path)


def algorithm_name(algorithm: object) -> str:
    """The name of an algorithm on the command line, or `package.module:name` of its class.

    >>> from coterie.algorithms.k_fed import KFed
    >>> algorithm_name(KFed())
    'k-fed'
    """
    kind = type(algorithm)
    return home_name("algorithm", kind, f"{kind.__module__}:{kind.__qualname__}")


def home_name(kind: str, found: Any, path: str) -> str:
    """The name of what was found at a path; the path itself if it has no other home."""
    if (built_in := SHELVES[kind].name_of(found)) is not None:
        return built_in
    home = f"{getattr(found, '__module__', '')}:{getattr(found, '__qualname__', '')}"
    module = sys.modules.get(home.partition(":")[0])
    with suppress(AttributeError):
        if reduce(getattr, home.partition(":")[2].split("."), module) is found:
            return home
    return path


def object_path(kind: str, name: str) -> str:
    """Where the thing behind a name lies that is not built in, as `package.module:name`."""
    if ":" in name:
        return name
    offers = entry_points_of(kind)
    found = offers.get(name, [])
    if len({point.value for point in found}) > 1:
        several = " and ".join(point.value for point in found)
        raise SettingError(f"several packages offer a {kind} named {name}: say {several}")
    if not found:
        known = [*SHELVES[kind], *offers]
        near = did_you_mean(name, known)
        every = f" ({kind}s: {', '.join(known)}; one of your own: package.module:name)"
        raise SettingError(f"no {kind} is named {name}{near or every}")
    return found[0].value.partition("[")[0].replace(" ", "")


def resolve_any(name: str) -> tuple[str, type[Any]]:
    """Of which kind a name is, and the settings class behind it."""
    for kind, shelf in SHELVES.items():
        if name in shelf:
            return kind, shelf[name]
    if ":" in name:
        found = load_object(name)
        kinds = [kind for kind in SHELVES if looks_like(kind, found)]
    else:
        kinds = [kind for kind in SHELVES if name in entry_points_of(kind)]
    if kinds:
        return kinds[0], resolve(kinds[0], name)
    if ":" in name:
        what = describe_object(load_object(name))
        raise SettingError(f"{name} is no algorithm, federation or network, but {what}")
    known = [each for kind, shelf in SHELVES.items() for each in (*shelf, *entry_points_of(kind))]
    near = did_you_mean(name, known) or f" (known: {', '.join(known)})"
    raise SettingError(f"no algorithm, federation or network is named {name}{near}")


def looks_like(kind: str, found: Any) -> bool:
    """Whether something a user wrote is probably of a kind, before it is checked."""
    if inspect.isclass(found) and is_dataclass(found):
        return hasattr(found, {"algorithm": "serve", "federation": "build"}.get(kind, "module"))
    if inspect.isclass(found):
        return kind == "network" and issubclass(found, nn.Module)
    if isinstance(found, nn.Module):
        return kind == "network"
    if not inspect.isroutine(found) or kind == "algorithm":
        return False
    signature = inspect.signature(found)
    makes_data = "seed" in signature.parameters or "Federation" in str(signature.return_annotation)
    return makes_data == (kind == "federation")


def as_algorithm(path: str, found: Any) -> type[Any]:
    """A frozen dataclass with the methods of an algorithm; anything else is refused."""
    rule = "an algorithm is a frozen dataclass with the methods init, round and serve"
    if not (inspect.isclass(found) and is_dataclass(found)):
        raise SettingError(f"{path} is not an algorithm: {rule}, got {describe_object(found)}")
    lacks = [name for name in METHODS["algorithm"] if not callable(getattr(found, name, 0))]
    if lacks:
        raise SettingError(
            f"{path} is not an algorithm: {rule}, it has no {' and no '.join(lacks)}"
        )
    if not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SettingError(f"{path} is not an algorithm: {rule}, it is not frozen")
    return found


def as_federation(path: str, found: Any) -> type[Any]:
    """A settings class with `build(seed)`, or one made of a function that returns a federation."""
    if inspect.isclass(found) and is_dataclass(found) and callable(getattr(found, "build", 0)):
        return found
    if inspect.isroutine(found):
        return settings_of_function(found, "build", ("seed",))
    raise SettingError(
        f"{path} is not a federation: a federation is a dataclass with the method build(seed), or "
        f"a function that returns a Federation, got {describe_object(found)}"
    )


def as_network(path: str, found: Any) -> type[Any]:
    """A settings class with `module(shape, outputs)`, or one made of a module or what builds one.

    A module brings its weights.
    """
    if inspect.isclass(found) and is_dataclass(found) and callable(getattr(found, "module", 0)):
        return found
    is_module: Any = inspect.isclass(found) and issubclass(found, nn.Module)
    if inspect.isroutine(found) or is_module:
        return settings_of_function(found, "module", ("shape", "outputs"))
    if isinstance(found, nn.Module):
        return settings_of_module(found)
    raise SettingError(
        f"{path} is not a network: a network is a dataclass with the method module(shape, "
        "outputs), a torch.nn.Module, or a function or class that makes one, "
        f"got {describe_object(found)}"
    )


AS_SETTINGS: dict[str, Callable[[str, Any], type[Any]]] = {
    "algorithm": as_algorithm,
    "federation": as_federation,
    "network": as_network,
}


def describe_object(found: Any) -> str:
    """What was found in place of what was expected, as the end of a sentence."""
    if inspect.isclass(found):
        return f"the class {found.__name__}"
    if inspect.isroutine(found):
        return f"the function {found.__name__}"
    return f"something of the type {type(found).__name__}"


def check_setting_types(path: str, owner: type[Any]) -> None:
    """Refuse settings that cannot be written as key=value."""
    try:
        types = get_type_hints(owner)
    except Exception as error:
        raise SettingError(
            f"the types of the settings of {path} cannot be read: {error}"
        ) from error
    for each in fields(owner):
        check_setting_type(path, each.name, types[each.name])


def suggestions(
    federation: type[Any], algorithm: type[Any] | None = None, name: str = ""
) -> dict[str, Any]:
    """The settings that a federation suggests for a run, the network among them.

    What the algorithm itself suggests comes before that, and what the federation suggests for an
    algorithm of this name before both.
    """
    special = getattr(federation, "suggests_for", {}).get(name, {})
    wishes = getattr(algorithm, "suggests", {})
    usual = getattr(federation, "suggests", {})
    found = {**usual, **wishes, **special}
    return found if "network" in found else {"network": DEFAULT_NETWORK, **found}
