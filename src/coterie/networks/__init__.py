"""Networks: settings classes by which a run names one, and the PyTorch modules they build.

A network has one method, `module(shape, outputs)`: a new module with random weights, for samples of
this shape and so many outputs. All its randomness comes from PyTorch's generator.
"""

from coterie.networks.cnn import CelebaCnn, CifarCnn, FemnistCnn
from coterie.networks.flows import LinearFlow, RealNvp
from coterie.networks.gan import Gan
from coterie.networks.mlp import Linear, Mlp, mlp

__all__ = [
    "CelebaCnn",
    "CifarCnn",
    "FemnistCnn",
    "Gan",
    "Linear",
    "LinearFlow",
    "Mlp",
    "RealNvp",
    "mlp",
]
