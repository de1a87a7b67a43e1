"""Placeholders for libraries, so that what coterie's own files say can be read without these.

To import PyTorch takes more than a second, and to print the settings of an algorithm none of it is
needed: only names such as `Tensor` and `nn.Module` in annotations and bases of classes. A process
that does nothing but print such texts imports the files of coterie with placeholders in the place
of the libraries. It must not compute anything. Algorithms and data of others may do more when they
are imported: a process that has to look at them has the libraries.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LIBRARIES = frozenset({"torch", "numpy", "scipy", "safetensors"})  # which coterie's files import


class PlaceholderKind(type):
    """The kind of a placeholder: a class whose attributes and parts are such classes as well."""

    def __getattr__(cls, name: str) -> Any:
        return make_placeholder(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __float__(cls) -> float:
        return float("nan")


class PlaceholderModule(ModuleType):
    """A module of a library: whatever is asked of it is there."""

    def __getattr__(self, name: str) -> Any:
        return make_placeholder(name)


def make_placeholder(name: str) -> Any:
    """A class of that name; none is private."""
    if name.startswith("_"):
        raise AttributeError(name)
    parts = {"__init__": accept, "__call__": decorate, "__getattr__": give_part}
    return PlaceholderKind(name, (), parts)


def accept(self: Any, *_: Any, **__: Any) -> None:
    """Take any arguments."""


def give_part(self: Any, name: str) -> Any:
    """What an attribute of an object is."""
    return make_placeholder(name)


def decorate(self: Any, *arguments: Any, **_: Any) -> Any:
    """What a decorator gives: the function itself."""
    return arguments[0] if arguments else self


class PlaceholderFinder(MetaPathFinder, Loader):
    """Finds a placeholder for every module of the libraries."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in LIBRARIES
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


def use_placeholders() -> None:
    """From now on this process has placeholders, unless it has one of the libraries already."""
    if LIBRARIES.isdisjoint(sys.modules):
        sys.meta_path.insert(0, PlaceholderFinder())
