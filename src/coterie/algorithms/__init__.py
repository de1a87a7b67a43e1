"""Every algorithm under its name on the command line."""

from typing import Any

from coterie.algorithms.cfl import CFL
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.fedsgd import FedSGD
from coterie.algorithms.fesem import FeSEM
from coterie.algorithms.fpfc import FPFC
from coterie.algorithms.fpfc_l1 import FPFCL1
from coterie.algorithms.hypcluster import HypCluster
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.k_fed import KFed
from coterie.algorithms.local import Local
from coterie.algorithms.one_shot import OneShot
from coterie.algorithms.oracle import Oracle
from coterie.algorithms.per_fedavg import PerFedAvg

ALGORITHMS: dict[str, type[Any]] = {
    "ifca": IFCA,
    "fpfc": FPFC,
    "fpfc-l1": FPFCL1,
    "hypcluster": HypCluster,
    "fesem": FeSEM,
    "one-shot": OneShot,
    "cfl": CFL,
    "k-fed": KFed,
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "fedprox": FedProx,
    "local": Local,
    "ditto": Ditto,
    "per-fedavg": PerFedAvg,
    "oracle": Oracle,
}
