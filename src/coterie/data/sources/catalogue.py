"""All sources by name: to bring one into the cache, and to say where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import SettingError, did_you_mean
from coterie.data.sources import celeba, cifar, femnist, mnist, rotnet
from coterie.data.sources.source import Source

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        mnist.MNIST_SOURCE,
        mnist.FASHION_SOURCE,
        mnist.WRITERS_SOURCE,
        cifar.SOURCE,
        femnist.SOURCE,
        celeba.SOURCE,
        rotnet.SOURCE,
    )
}


def get(name: str, say: Callable[[str], None]) -> Path:
    """Bring a source into the cache and verify it; the folder it is in."""
    if name not in SOURCES:
        raise SettingError(f"no source is named {name}{did_you_mean(name, SOURCES)}")
    return SOURCES[name].get(say)


def list_sources() -> str:
    """All sources on a line each: the name, what it is, and where it is."""
    rows = [("source", "what it is", "where")]
    for source in SOURCES.values():
        here = source.where()
        absent = f"not here; `coterie data get {source.name}`"
        rows.append((source.name, source.description, absent if here is None else str(here)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)
