"""What a node runs: coterie's own algorithms, federations and networks, and what its file allows.

    allow = ["mypackage.mine:Method", "mypackage.data:visits"]      # in NODE.toml

A server can only name things. A name that is not allowed is refused before anything is imported, in
the same words whether or not there is such a thing on the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coterie.core.errors import SettingError
from coterie.registry import full_name, resolve_any
from coterie.shelves import SHELVES

REFUSAL = "this node runs what is coterie's own and what its own file allows, and nothing else"


class NotAllowed(SettingError):
    """A server asked for what the operator of a node has not allowed, said in words of ours."""


def load_allowed(names: Iterable[str]) -> frozenset[str]:
    """What a node file allows, each by its one name; refuse what is not installed here."""
    return frozenset(full_name(resolve_any(name)[0], name) for name in names)


def check_allowed(allowed: frozenset[str], kind: str, name: str) -> None:
    """Refuse an algorithm, federation or network that is neither coterie's own nor allowed."""
    if name not in SHELVES[kind] and name not in allowed:
        raise NotAllowed(REFUSAL)


def check_app_allowed(allowed: frozenset[str], config: Mapping[str, Any]) -> None:
    """Refuse the settings of an app that names anything else."""
    for kind in SHELVES:
        check_allowed(allowed, kind, str(config.get(kind, "")))


def own_names(config: Mapping[str, Any]) -> list[str]:
    """What an app names that is not coterie's own: its nodes have to allow it.

    >>> own_names({"algorithm": "ifca", "federation": "mine.data:visits", "network": "mlp"})
    ['mine.data:visits']
    """
    return [str(config[kind]) for kind, shelf in SHELVES.items() if config[kind] not in shelf]
