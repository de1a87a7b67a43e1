"""The names of everything that can be run: algorithms, federations and networks."""

from __future__ import annotations

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
from coterie.core.errors import SettingError, did_you_mean
from coterie.data.federations.by_person import Celeba, Femnist, MnistWriters
from coterie.data.federations.label_swap import LabelSwapFashion, LabelSwapMnist
from coterie.data.federations.linear_mixture import LinearMixture
from coterie.data.federations.partitioned import Cifar10, Digits, FashionMnist, Mnist
from coterie.data.federations.rotated import (
    RotatedCifar,
    RotatedDigits,
    RotatedFashion,
    RotatedMnist,
)
from coterie.data.federations.sample_clusters import (
    GaussianClusters,
    MnistDigitRotations,
    MnistDigits,
    SubspaceClusters,
)
from coterie.data.federations.synthetic import FpfcSynthetic, LeafSynthetic
from coterie.data.tables.table import Table
from coterie.networks import CelebaCnn, CifarCnn, FemnistCnn, Linear, Mlp

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

FEDERATIONS: dict[str, type[Any]] = {
    "rotated-digits": RotatedDigits,
    "rotated-mnist": RotatedMnist,
    "rotated-fashion": RotatedFashion,
    "rotated-cifar": RotatedCifar,
    "label-swap-mnist": LabelSwapMnist,
    "label-swap-fashion": LabelSwapFashion,
    "mnist-writers": MnistWriters,
    "femnist": Femnist,
    "celeba": Celeba,
    "linear-mixture": LinearMixture,
    "fpfc-synthetic": FpfcSynthetic,
    "leaf-synthetic": LeafSynthetic,
    "gaussian-clusters": GaussianClusters,
    "subspace-clusters": SubspaceClusters,
    "mnist-digits": MnistDigits,
    "mnist-digit-rotations": MnistDigitRotations,
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "table": Table,
}

NETWORKS: dict[str, type[Any]] = {
    "linear": Linear,
    "mlp": Mlp,
    "cnn": FemnistCnn,
    "cifar-cnn": CifarCnn,
    "celeba-cnn": CelebaCnn,
}

SHELVES = {"algorithm": ALGORITHMS, "federation": FEDERATIONS, "network": NETWORKS}


def find(kind: str, name: str) -> type[Any]:
    """The class behind a name; an unknown name is refused with the near ones.

    >>> find("network", "mlp").__name__
    'Mlp'
    """
    known = SHELVES[kind]
    if name not in known:
        near = did_you_mean(name, known) or f" ({kind}s: {', '.join(known)})"
        raise SettingError(f"no {kind} is named {name}{near}")
    return known[name]


def algorithm_name(algorithm: object) -> str:
    """The name of an algorithm on the command line; its class, if it has none there."""
    names = {kind: name for name, kind in ALGORITHMS.items()}
    return names.get(type(algorithm), type(algorithm).__name__)
