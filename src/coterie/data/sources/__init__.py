"""Where data come from: one cache of published files, and a loader for each.

`get` brings a source into the cache, verified; a loader reads the cache and never the network.
Loaders decode the published formats themselves and give tensors of bytes: what a pixel means is for
the federation that is made of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.data.sources.catalogue import SOURCES as SOURCES
    from coterie.data.sources.catalogue import get as get
    from coterie.data.sources.catalogue import list_sources as list_sources
    from coterie.data.sources.celeba import load_celeba as load_celeba
    from coterie.data.sources.cifar import load_cifar10 as load_cifar10
    from coterie.data.sources.digits import load_digits as load_digits
    from coterie.data.sources.femnist import load_femnist as load_femnist
    from coterie.data.sources.mnist import load_fashion_mnist as load_fashion_mnist
    from coterie.data.sources.mnist import load_mnist as load_mnist
    from coterie.data.sources.mnist import load_mnist_writers as load_mnist_writers
    from coterie.data.sources.rotnet import load_rotnet as load_rotnet
    from coterie.data.sources.source import folders as folders

# What reads one source is not imported for another: that takes longer than a small run.
HOMES = {
    "SOURCES": "catalogue",
    "get": "catalogue",
    "list_sources": "catalogue",
    "load_celeba": "celeba",
    "load_cifar10": "cifar",
    "load_digits": "digits",
    "load_femnist": "femnist",
    "load_fashion_mnist": "mnist",
    "load_mnist": "mnist",
    "load_mnist_writers": "mnist",
    "load_rotnet": "rotnet",
    "folders": "source",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
