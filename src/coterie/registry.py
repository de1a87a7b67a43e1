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
from coterie.data.federations import (
    by_person,
    label_swap,
    linear_mixture,
    partitioned,
    rotated,
    sample_clusters,
    synthetic,
)
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
    "rotated-digits": rotated.RotatedDigits,
    "rotated-mnist": rotated.RotatedMnist,
    "rotated-fashion": rotated.RotatedFashion,
    "rotated-cifar": rotated.RotatedCifar,
    "label-swap-mnist": label_swap.LabelSwapMnist,
    "label-swap-fashion": label_swap.LabelSwapFashion,
    "mnist-writers": by_person.MnistWriters,
    "femnist": by_person.Femnist,
    "celeba": by_person.Celeba,
    "linear-mixture": linear_mixture.LinearMixture,
    "fpfc-synthetic": synthetic.FpfcSynthetic,
    "leaf-synthetic": synthetic.LeafSynthetic,
    "gaussian-clusters": sample_clusters.GaussianClusters,
    "subspace-clusters": sample_clusters.SubspaceClusters,
    "mnist-digits": sample_clusters.MnistDigits,
    "mnist-digit-rotations": sample_clusters.MnistDigitRotations,
    "digits": partitioned.Digits,
    "mnist": partitioned.Mnist,
    "fashion-mnist": partitioned.FashionMnist,
    "cifar10": partitioned.Cifar10,
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
