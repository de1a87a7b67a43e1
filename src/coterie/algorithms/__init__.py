"""Every algorithm under its name on the command line."""

from typing import Any

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.algorithms.oracle import Oracle

ALGORITHMS: dict[str, type[Any]] = {
    "ifca": IFCA,
    "fedavg": FedAvg,
    "local": Local,
    "oracle": Oracle,
}
