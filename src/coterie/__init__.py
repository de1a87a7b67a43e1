"""coterie: clustered federated learning, simulated fast and meant to be deployed unchanged."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.algorithms.fedavg import FedAvg
    from coterie.algorithms.ifca import IFCA
    from coterie.algorithms.local import Local
    from coterie.algorithms.oracle import Oracle
    from coterie.core.errors import CoterieError, CoterieWarning
    from coterie.data.federation import Federation
    from coterie.experiment.catalogue import load
    from coterie.experiment.run import Run, simulate
    from coterie.tasks import Classification, Regression

# PyTorch takes seconds to load: names are looked up when they are first used, so that the command
# line can answer and be interrupted at once.
HOMES = {
    "IFCA": "algorithms.ifca",
    "Classification": "tasks",
    "CoterieError": "core.errors",
    "CoterieWarning": "core.errors",
    "FedAvg": "algorithms.fedavg",
    "Federation": "data.federation",
    "Local": "algorithms.local",
    "Oracle": "algorithms.oracle",
    "Regression": "tasks",
    "Run": "experiment.run",
    "load": "experiment.catalogue",
    "simulate": "experiment.run",
}

__all__ = [
    "IFCA",
    "Classification",
    "CoterieError",
    "CoterieWarning",
    "FedAvg",
    "Federation",
    "Local",
    "Oracle",
    "Regression",
    "Run",
    "__version__",
    "load",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(importlib.import_module(f"coterie.{HOMES[name]}"), name)
