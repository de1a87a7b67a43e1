"""Folds and filters as they cross the network: the name of a kind from a list, and its settings.

Nothing else can be named, and nothing is unpickled: a node makes them anew from what it has
installed. A fold or a filter of another kind does not cross; the server applies it itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from torch import Tensor

from coterie.channel.lost_replies import LoseReplies
from coterie.flower.wire import BadPacket
from coterie.vectors.folds import ByCluster, NearestCentre, RowSent, WeightedRows

KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (ByCluster, WeightedRows, RowSent, NearestCentre, LoseReplies)
}
PLAIN = (bool, int, float, str, type(None))


def can_cross(value: Any) -> bool:
    """Whether a node can be told to make the same."""
    if type(value) in KINDS.values():
        return all(can_cross(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and can_cross(each) for key, each in value.items())
    return isinstance(value, (*PLAIN, Tensor))


def encode_plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON takes it; its tensors are added to `tensors`, by names that begin so."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {
            "map": [[key, encode_plain(v, f"{name}.{key}", tensors)] for key, v in value.items()]
        }
    named = {
        field.name: encode_plain(getattr(value, field.name), f"{name}.{field.name}", tensors)
        for field in fields(value)
    }
    return {"kind": type(value).__name__, "settings": named}


def decode_plain(raw: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `encode_plain` encoded; anything else is refused."""
    if isinstance(raw, PLAIN):
        return raw
    if not isinstance(raw, dict):
        raise BadPacket("a setting of a message is not plain data")
    if set(raw) == {"tensor"} and isinstance(raw["tensor"], str) and raw["tensor"] in tensors:
        return tensors[raw["tensor"]]
    if set(raw) == {"map"}:
        return {str(key): decode_plain(value, tensors) for key, value in raw["map"]}
    if set(raw) != {"kind", "settings"} or raw["kind"] not in KINDS:
        raise BadPacket(f"a node knows nothing of the kind {raw.get('kind')!r}")
    kind, named = KINDS[raw["kind"]], raw["settings"]
    if not isinstance(named, dict) or set(named) != {field.name for field in fields(kind)}:
        raise BadPacket(f"{raw['kind']} has other settings")
    found = {name: decode_plain(value, tensors) for name, value in named.items()}
    for name, wanted in get_type_hints(kind).items():
        if wanted in (bool, int, float, str) and type(found.get(name)) is not wanted:
            raise BadPacket(f"`{name}` of {raw['kind']} must be {wanted.__name__}")
    return kind(**found)
