"""The derivative of an activation where PyTorch has it in one pass, but no public name for it."""

from __future__ import annotations

import torch
from torch import Tensor


def relu_gradient(slopes: Tensor, after: Tensor) -> Tensor:
    """Slopes by what went into a ReLU, from those by what came out of it, `after`; in place.

    >>> relu_gradient(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 5.0])).tolist()
    [0.0, 3.0]
    """
    passed: Tensor = torch.ops.aten.threshold_backward.grad_input(
        slopes, after, 0, grad_input=slopes
    )
    return passed


def sigmoid_gradient(slopes: Tensor, after: Tensor, out: Tensor) -> Tensor:
    """Slopes by what went into a sigmoid, from those by what came out of it, `after`, in `out`.

    >>> sigmoid_gradient(torch.tensor([2.0]), torch.tensor([0.5]), torch.zeros(1)).tolist()
    [0.5]
    """
    passed: Tensor = torch.ops.aten.sigmoid_backward.grad_input(slopes, after, grad_input=out)
    return passed
