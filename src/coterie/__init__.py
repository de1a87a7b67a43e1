"""coterie: clustered federated learning, simulated fast and meant to be deployed unchanged."""

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.algorithms.oracle import Oracle
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data.federation import Federation
from coterie.experiment.catalogue import load
from coterie.experiment.run import Run, simulate
from coterie.tasks import Classification, Regression
from coterie.version import __version__

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
