"""A network that is there already: it brings its weights."""

from __future__ import annotations

import copy
from dataclasses import make_dataclass
from functools import cache
from typing import Any

from torch import nn

from coterie.core.settings import Settings


@cache
def settings_of_module(module: nn.Module) -> type[Any]:
    """A settings class without settings whose networks are copies of a module, weights included.

    >>> linear = nn.Linear(2, 1)
    >>> bool((settings_of_module(linear)().module([2], 1).weight == linear.weight).all())
    True
    """

    def copied(self: Any, shape: Any, outputs: int) -> nn.Module:
        return copy.deepcopy(module)

    def reduce(self: Any) -> tuple[Any, ...]:
        # The class is made here and cannot be found by its name.
        return restore_module, (module,)

    name = type(module).__name__
    return make_dataclass(
        name,
        [],
        bases=(Settings,),
        namespace={
            "module": copied,
            "__reduce__": reduce,
            "__doc__": f"A {name} that brings its weights.",
            "__module__": type(module).__module__,
        },
        frozen=True,
        kw_only=True,
    )


def restore_module(module: nn.Module) -> Any:
    """The settings of a module that were pickled."""
    return settings_of_module(module)()
