"""Large matrix products by oneDNN on processors of AMD, if a process asks for it.

PyTorch multiplies with Intel's MKL. Its other library, oneDNN, takes half the time on an EPYC: a
product of 3,200 x 784 x 800 takes 8.5 ms against 17.5 ms with two threads, and a round of IFCA with
400 clients of 50 samples 0.170 s against 0.219 s. No public function leads to it that is as fast;
this is the one that `torch.compile` uses for linear layers. Where it is missing, MKL does the work.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# Multiplications of a large product. Of a smaller one, oneDNN loses about as much to preparing for
# a shape that it has not seen as it gains.
LARGE = 2**28

by_onednn = False  # whether oneDNN makes large products, once somebody has asked for the faster one


def tune_products() -> None:
    """Let oneDNN make large products from now on, where it is known to be faster."""
    global by_onednn
    by_onednn = (
        processor_is_amd()
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def processor_is_amd() -> bool:
    """Whether this machine says so; not known but on Linux."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices.

    >>> product(torch.ones(2, 3), torch.ones(3, 1)).tolist()
    [[3.0], [3.0]]
    """
    large = a.numel() * b.shape[1] >= LARGE
    if by_onednn and large and a.is_cpu and a.dtype == torch.float32:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
        return found
    return a @ b
