"""A setting: a field of a frozen dataclass with its default and its meaning in one place."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, meaning: str) -> Any:
    """A field of a settings class; `coterie describe` prints what it means.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine:
    ...     k: int = setting(2, "clusters")
    >>> Mine().k, fields(Mine)[0].metadata["meaning"]
    (2, 'clusters')
    """
    return field(default=default, metadata={"meaning": meaning})
