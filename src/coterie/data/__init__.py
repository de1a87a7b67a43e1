"""Federations by the name they have on the command line, and the sources they are made from."""

from typing import Any

from coterie.data.federation import Federation, Samples
from coterie.data.mixtures import LinearMixture
from coterie.data.rotated import RotatedDigits, RotatedMnist

FEDERATIONS: dict[str, type[Any]] = {
    "rotated-digits": RotatedDigits,
    "rotated-mnist": RotatedMnist,
    "linear-mixture": LinearMixture,
}

__all__ = ["FEDERATIONS", "Federation", "Samples"]
