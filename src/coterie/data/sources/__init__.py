"""Where data come from: one cache of published files, and a loader for each.

`get` brings a source into the cache, verified; a loader reads the cache and never the network.
Loaders decode the published formats themselves and give tensors of bytes: what a pixel means is for
the federation that is made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import SettingError, did_you_mean
from coterie.data.sources import cifar, faces, handwriting, mnists
from coterie.data.sources.cache import cached, folders
from coterie.data.sources.cifar import cifar10
from coterie.data.sources.digits import digits
from coterie.data.sources.faces import Celeba, celeba
from coterie.data.sources.handwriting import Femnist, femnist
from coterie.data.sources.idx import read_idx
from coterie.data.sources.mnists import MNIST, fashion_mnist, mnist, qmnist_writers
from coterie.data.sources.source import Source

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        mnists.MNIST_SOURCE,
        mnists.FASHION_SOURCE,
        mnists.WRITERS_SOURCE,
        cifar.SOURCE,
        handwriting.SOURCE,
        faces.SOURCE,
    )
}


def named(name: str) -> Source:
    """The source of this name."""
    if name not in SOURCES:
        raise SettingError(f"no source is named {name}{did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def get(name: str, say: Callable[[str], None]) -> Path:
    """Bring a source into the cache and verify it; the folder it is in."""
    return named(name).get(say)


def path(name: str) -> Path:
    """The folder that holds a source, or else the one that `get` would put it in."""
    source = named(name)
    return source.where() or source.places()[0]


def listing() -> str:
    """All sources on a line each: the name, what it is, and where it is."""
    rows = [("source", "what it is", "where")]
    for source in SOURCES.values():
        here = source.where()
        absent = f"not here; `coterie data get {source.name}`"
        rows.append((source.name, source.description, absent if here is None else str(here)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)


__all__ = [
    "MNIST",
    "SOURCES",
    "Celeba",
    "Femnist",
    "Source",
    "cached",
    "celeba",
    "cifar10",
    "digits",
    "fashion_mnist",
    "femnist",
    "folders",
    "get",
    "listing",
    "mnist",
    "path",
    "qmnist_writers",
    "read_idx",
]
