"""Large matrix products, by the faster of the two libraries that PyTorch brings for them.

PyTorch multiplies with Intel's MKL. Its other library, oneDNN, was faster on a processor of AMD (a
Zen 4): by 4 to 17 % with one thread and by up to 40 % with two. Other processors were not at hand.
No public function leads to it; this is the one that `torch.compile` uses for linear layers. Where
it is missing, MKL does the work.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# Multiplications of a large product. Of a smaller one, oneDNN loses about as much to preparing for
# a shape that it has not seen as it gains.
LARGE = 2**28


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices."""
    large = a.numel() * b.shape[1] >= LARGE
    if large and a.is_cpu and a.dtype == torch.float32 and onednn_is_faster():
        found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
        return found
    return a @ b


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor of AMD, PyTorch multiplies with MKL, and oneDNN is at hand."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return (
        "AuthenticAMD" in processor
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
