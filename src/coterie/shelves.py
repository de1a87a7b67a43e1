"""The names of everything that can be run: algorithms, federations and networks.

Nothing of it is imported here: to know the names takes no PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class Shelf(MutableMapping[str, type[Any]]):
    """What is built in, by name; a thing is imported when it is first asked for.

    `homes` says of each name the module and the class in it, as in `algorithms.ifca:IFCA`.

    >>> Shelf({"mlp": "networks.mlp:Mlp"})["mlp"].__name__
    'Mlp'
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes = {name: f"coterie.{home}" for name, home in homes.items()}
        self._found: dict[str, type[Any]] = {}

    def __getitem__(self, name: str) -> type[Any]:
        if name not in self._found:
            module, _, kind = self.homes[name].partition(":")
            self._found[name] = getattr(importlib.import_module(module), kind)
        return self._found[name]

    def __setitem__(self, name: str, kind: type[Any]) -> None:
        self.homes[name] = f"{kind.__module__}:{kind.__qualname__}"
        self._found[name] = kind

    def __delitem__(self, name: str) -> None:
        del self.homes[name]
        self._found.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)

    def name_of(self, kind: object) -> str | None:
        """The name of a class; None if it is not on this shelf."""
        home = f"{getattr(kind, '__module__', '')}:{getattr(kind, '__qualname__', '')}"
        return next((name for name, known in self.homes.items() if known == home), None)


ALGORITHMS = Shelf(
    {
        "ifca": "algorithms.ifca:IFCA",
        "fpfc": "algorithms.fpfc:FPFC",
        "fpfc-l1": "algorithms.fpfc_l1:FPFCL1",
        "hypcluster": "algorithms.hypcluster:HypCluster",
        "fesem": "algorithms.fesem:FeSEM",
        "fesem-ma": "algorithms.fesem_ma:FeSEMMA",
        "fedprc": "algorithms.fedprc:FedPRC",
        "fedroc": "algorithms.fedroc:FedRoC",
        "tkm": "algorithms.tkm:TKM",
        "one-shot": "algorithms.one_shot:OneShot",
        "cfl": "algorithms.cfl:CFL",
        "k-fed": "algorithms.k_fed:KFed",
        "uifca": "algorithms.uifca:UIFCA",
        "cluster-gan": "algorithms.cluster_gan:ClusterGAN",
        "fedavg": "algorithms.fedavg:FedAvg",
        "fedsgd": "algorithms.fedsgd:FedSGD",
        "fedprox": "algorithms.fedprox:FedProx",
        "feddane": "algorithms.feddane:FedDANE",
        "feddist": "algorithms.feddist:FedDist",
        "feddws": "algorithms.feddist:FedDWS",
        "local": "algorithms.local:Local",
        "ditto": "algorithms.ditto:Ditto",
        "per-fedavg": "algorithms.per_fedavg:PerFedAvg",
        "oracle": "algorithms.oracle:Oracle",
    }
)

FEDERATIONS = Shelf(
    {
        "rotated-digits": "data.federations.rotated:RotatedDigits",
        "rotated-mnist": "data.federations.rotated:RotatedMnist",
        "rotated-fashion": "data.federations.rotated:RotatedFashion",
        "rotated-cifar": "data.federations.rotated:RotatedCifar",
        "label-swap-mnist": "data.federations.label_swap:LabelSwapMnist",
        "label-swap-fashion": "data.federations.label_swap:LabelSwapFashion",
        "mnist-writers": "data.federations.by_person:MnistWriters",
        "femnist": "data.federations.by_person:Femnist",
        "celeba": "data.federations.by_person:Celeba",
        "linear-mixture": "data.federations.linear_mixture:LinearMixture",
        "fpfc-synthetic": "data.federations.synthetic:FpfcSynthetic",
        "leaf-synthetic": "data.federations.synthetic:LeafSynthetic",
        "leaf-generator": "data.federations.leaf_generator:LeafGenerator",
        "gaussian-clusters": "data.federations.sample_clusters:GaussianClusters",
        "subspace-clusters": "data.federations.sample_clusters:SubspaceClusters",
        "mnist-digits": "data.federations.mnist_clusters:MnistDigits",
        "mnist-digit-rotations": "data.federations.mnist_clusters:MnistDigitRotations",
        "mnist-representations": "data.federations.representations:MnistRepresentations",
        "digits": "data.federations.partitioned:Digits",
        "mnist": "data.federations.partitioned:Mnist",
        "fashion-mnist": "data.federations.partitioned:FashionMnist",
        "cifar10": "data.federations.partitioned:Cifar10",
        "table": "data.tables.table:Table",
    }
)

NETWORKS = Shelf(
    {
        "linear": "networks.mlp:Linear",
        "mlp": "networks.mlp:Mlp",
        "cnn": "networks.cnn:FemnistCnn",
        "cifar-cnn": "networks.cnn:CifarCnn",
        "celeba-cnn": "networks.cnn:CelebaCnn",
        "linear-flow": "networks.flows:LinearFlow",
        "realnvp": "networks.flows:RealNvp",
        "gan": "networks.gan:Gan",
    }
)

SHELVES = {"algorithm": ALGORITHMS, "federation": FEDERATIONS, "network": NETWORKS}
ENTRY_POINTS = {kind: f"coterie.{kind}s" for kind in SHELVES}  # groups of packages' metadata
DEFAULT_NETWORK = "mlp"  # where a federation suggests none


def entry_points_of(kind: str) -> dict[str, list[EntryPoint]]:
    """The names that installed packages offer; a built-in name stays what it is."""
    offers: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINTS[kind]):
        if point.name not in SHELVES[kind]:
            offers.setdefault(point.name, []).append(point)
    return dict(sorted(offers.items()))
