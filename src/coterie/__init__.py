"""coterie: clustered federated learning, simulated fast and meant to be deployed unchanged."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.algorithms.cfl import CFL
    from coterie.algorithms.cluster_gan import ClusterGAN
    from coterie.algorithms.ditto import Ditto
    from coterie.algorithms.fedavg import FedAvg
    from coterie.algorithms.feddane import FedDANE
    from coterie.algorithms.feddist import FedDist, FedDWS
    from coterie.algorithms.fedprc import FedPRC
    from coterie.algorithms.fedprox import FedProx
    from coterie.algorithms.fedroc import FedRoC
    from coterie.algorithms.fedsgd import FedSGD
    from coterie.algorithms.fesem import FeSEM
    from coterie.algorithms.fesem_ma import FeSEMMA
    from coterie.algorithms.fpfc import FPFC
    from coterie.algorithms.fpfc_l1 import FPFCL1
    from coterie.algorithms.hypcluster import HypCluster
    from coterie.algorithms.ifca import IFCA
    from coterie.algorithms.k_fed import KFed
    from coterie.algorithms.local import Local
    from coterie.algorithms.one_shot import OneShot
    from coterie.algorithms.oracle import Oracle
    from coterie.algorithms.per_fedavg import PerFedAvg
    from coterie.algorithms.tkm import TKM
    from coterie.algorithms.uifca import UIFCA
    from coterie.core.errors import CoterieError, CoterieWarning
    from coterie.core.samples import Ragged
    from coterie.data.federation import Federation
    from coterie.data.tables.schema import Schema, read_schema
    from coterie.estimators.clustered import ClusteredClassifier, ClusteredRegressor
    from coterie.experiment.compare import compare
    from coterie.experiment.plan import load
    from coterie.experiment.run import Run
    from coterie.experiment.simulate import simulate
    from coterie.prediction.load_run import load_run
    from coterie.tasks import (
        Centre,
        Classification,
        Codes,
        Density,
        Regression,
        TokenClassification,
    )

# PyTorch takes seconds to load: names are looked up when they are first used, so that the command
# line can answer and be interrupted at once.
HOMES = {
    "FedDist": "algorithms.feddist",
    "FedDWS": "algorithms.feddist",
    "FedDANE": "algorithms.feddane",
    "TKM": "algorithms.tkm",
    "FedPRC": "algorithms.fedprc",
    "FedRoC": "algorithms.fedroc",
    "FeSEMMA": "algorithms.fesem_ma",
    "FPFC": "algorithms.fpfc",
    "FPFCL1": "algorithms.fpfc_l1",
    "CFL": "algorithms.cfl",
    "IFCA": "algorithms.ifca",
    "UIFCA": "algorithms.uifca",
    "ClusterGAN": "algorithms.cluster_gan",
    "ClusteredClassifier": "estimators.clustered",
    "ClusteredRegressor": "estimators.clustered",
    "Codes": "tasks",
    "Density": "tasks",
    "Centre": "tasks",
    "Classification": "tasks",
    "CoterieError": "core.errors",
    "CoterieWarning": "core.errors",
    "Ditto": "algorithms.ditto",
    "FeSEM": "algorithms.fesem",
    "FedAvg": "algorithms.fedavg",
    "FedProx": "algorithms.fedprox",
    "FedSGD": "algorithms.fedsgd",
    "Federation": "data.federation",
    "HypCluster": "algorithms.hypcluster",
    "KFed": "algorithms.k_fed",
    "Local": "algorithms.local",
    "OneShot": "algorithms.one_shot",
    "Oracle": "algorithms.oracle",
    "PerFedAvg": "algorithms.per_fedavg",
    "Ragged": "core.samples",
    "Regression": "tasks",
    "Run": "experiment.run",
    "TokenClassification": "tasks",
    "compare": "experiment.compare",
    "load": "experiment.plan",
    "load_run": "prediction.load_run",
    "Schema": "data.tables.schema",
    "read_schema": "data.tables.schema",
    "simulate": "experiment.simulate",
}

__all__ = [
    "CFL",
    "FPFC",
    "FPFCL1",
    "IFCA",
    "TKM",
    "UIFCA",
    "Centre",
    "Classification",
    "ClusterGAN",
    "ClusteredClassifier",
    "ClusteredRegressor",
    "Codes",
    "CoterieError",
    "CoterieWarning",
    "Density",
    "Ditto",
    "FeSEM",
    "FeSEMMA",
    "FedAvg",
    "FedDANE",
    "FedDWS",
    "FedDist",
    "FedPRC",
    "FedProx",
    "FedRoC",
    "FedSGD",
    "Federation",
    "HypCluster",
    "KFed",
    "Local",
    "OneShot",
    "Oracle",
    "PerFedAvg",
    "Ragged",
    "Regression",
    "Run",
    "Schema",
    "TokenClassification",
    "__version__",
    "compare",
    "load",
    "load_run",
    "read_schema",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(importlib.import_module(f"coterie.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
