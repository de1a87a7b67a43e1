"""Federations by the name they have on the command line, and the sources they are made from."""

from typing import Any

from coterie.data.federation import Federation, Samples
from coterie.data.federations.by_person import Celeba, Femnist, MnistWriters
from coterie.data.federations.dealt import Cifar10, Digits, FashionMnist, Mnist
from coterie.data.federations.label_swap import LabelSwapFashion, LabelSwapMnist
from coterie.data.federations.linear_mixture import LinearMixture
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
from coterie.data.tables import Table

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

__all__ = ["FEDERATIONS", "Federation", "Samples"]
