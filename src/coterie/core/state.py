"""The state of an algorithm as named tensors and a description of the rest, and back.

A state is a named tuple. It may hold tensors, numbers, texts and None, and named tuples, tuples,
lists and dicts of more. A checkpoint keeps the tensors by their path, as in `pairs.delta`, and the
structure around them as JSON, so that nothing is read off annotations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from coterie.core.errors import CheckpointError, SettingError
from coterie.core.imports import read_annotations

VALUES = (bool, int, float, str, type(None))


def state_tensors(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by their path.

    >>> import torch
    >>> list(state_tensors({"heads": (torch.ones(1), None, [torch.ones(2)]), "rounds": 3}))
    ['heads.0', 'heads.2.0']
    """
    found: dict[str, Tensor] = {}
    for path, leaf in leaves(state):
        if isinstance(leaf, Tensor):
            if path in found:
                raise SettingError(f"two tensors of the state have the same path {path}")
            found[path] = leaf
    return found


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All that is no container, with its path."""
    inner = children(state)
    if inner is None:
        yield path, state
    else:
        for name, value in inner:
            yield from leaves(value, f"{path}.{name}" if path else str(name))


def children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name; None of anything else."""
    if isinstance(value, dict):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        return [(str(name), part) for name, part in zip(names, value, strict=True)]
    return None


def describe_state(state: Any, algorithm: Any) -> Any:
    """The structure of a state as JSON; refuse what could not be put together again."""
    if isinstance(state, Tensor):
        return ["tensor"]
    if type(state) in VALUES:
        return ["value", state]
    parts = children(state)
    kind = type(state)
    if parts is None or (isinstance(state, dict) and not all(isinstance(k, str) for k in state)):
        raise SettingError(
            f"the state of {type(algorithm).__name__} may hold tensors, numbers, texts, None, and "
            f"tuples, lists and dicts of these with texts for keys, got {kind.__name__}"
        )
    inner = [[name, describe_state(part, algorithm)] for name, part in parts]
    if kind in (tuple, list, dict):
        return [kind.__name__, inner]
    name = tuple_name(kind, algorithm)
    if find_tuple(name, type(algorithm).__module__) is not kind:
        raise SettingError(
            f"the state of {type(algorithm).__name__} holds a {kind.__name__} that cannot be found "
            "again when the run is resumed: define it at the top of a module, as a NamedTuple"
        )
    return ["named", inner, name]


def rebuild_state(
    structure: Any, tensors: dict[str, Tensor], algorithm: Any, path: str = ""
) -> Any:
    """The state that `describe_state` described, with tensors by their path."""
    kind, *rest = structure
    if kind == "tensor":
        if path not in tensors:
            name = type(algorithm).__name__
            raise CheckpointError(f"the checkpoint has no {path}, which {name} now needs")
        return tensors[path]
    if kind == "value":
        return rest[0]
    inner = {
        name: rebuild_state(part, tensors, algorithm, f"{path}.{name}" if path else name)
        for name, part in rest[0]
    }
    if kind == "dict":
        return inner
    if kind != "named":
        return tuple(inner.values()) if kind == "tuple" else list(inner.values())
    found = find_tuple(rest[1], type(algorithm).__module__)
    if found is None or list(found._fields) != list(inner):
        raise CheckpointError(
            f"the checkpoint holds a state {rest[1]} ({', '.join(inner)}), which "
            f"{type(algorithm).__name__} no longer has"
        )
    return found(**inner)


def annotated_state(algorithm: Any) -> Any:
    """The structure of a state of tensors, as `init` declares it, for older checkpoints."""
    kind = read_annotations(type(algorithm).init).get("return", object)
    inner = [[name, ["tensor"]] for name in getattr(kind, "_fields", ())]
    return ["named", inner, tuple_name(kind, algorithm)]


def tuple_name(kind: type, algorithm: Any) -> str:
    """The name by which `find_tuple` finds a named tuple again."""
    own = kind.__module__ == type(algorithm).__module__
    return kind.__qualname__ if own else f"{kind.__module__}:{kind.__qualname__}"


def find_tuple(name: str, home: str) -> Any:
    """The named tuple of a name, `State` of the module `home` or `package.module:State`.

    Nothing is imported: the module of an algorithm has imported what its state consists of.
    """
    module, _, path = name.rpartition(":")
    found: Any = sys.modules.get(module or home)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_tuple = isinstance(found, type) and issubclass(found, tuple)
    return found if is_tuple and hasattr(found, "_fields") else None
