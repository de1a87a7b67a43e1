"""Sample space: full-batch gradient descent through a first linear layer without its weights.

With all samples X in every step, the first layer's weights W move only by combinations of X. So
instead of W [h, f] the activations Z = X W' + b [n, h] are carried along, and the gradient steps
are added up in S [n, h]:

    Z <- Z - lr (X X' + 1) dZ,    S <- S + dZ;    at the end  W = W_0 - lr S' X,  b = b_0 - lr S' 1

(the 1 belongs to the bias). A step costs n^2 h instead of 2 n f h multiplications, which pays when
a client has fewer samples than features. The result is that of ordinary descent, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows


def pays(rows: Rows, descent: Descent) -> bool:
    """Whether a descent stays in the span of its samples, and is cheaper there.

    Mini-batches, pulls and frozen coordinates leave the span; they are done in the ordinary way.
    """
    in_span = descent.batches is None and descent.only is None
    unpulled = descent.anchor is None and descent.weight_decay == 0
    samples, features = rows.y.shape[1], rows.x[0, 0].numel()
    return in_span and unpulled and descent.steps[0] > 1 and samples < features


def descend(
    weights: list[Tensor],
    has_bias: bool,
    rows: Rows,
    descent: Descent,
    losses: Callable[[list[Tensor], Tensor], Tensor],
) -> list[Tensor]:
    """The weights of all layers, each with a client axis, after descent from `weights`.

    `losses(upper, z)` gives the loss [m] of every client from the weights of the layers above the
    first and the first layer's activations [m, n, h].
    """
    x = rows.x.flatten(2)
    first, upper = weights[0], [weight.clone() for weight in weights[1 + has_bias :]]
    gram = torch.bmm(x, x.mT)  # [m, n, n]
    if has_bias:
        z = torch.baddbmm(weights[1][:, None], x, first.mT)
        gram += 1
    else:
        z = torch.bmm(x, first.mT)
    moved = torch.zeros_like(z)  # S
    for _ in range(descent.steps[0]):
        leaves = [leaf.detach().requires_grad_() for leaf in (z, *upper)]
        with torch.enable_grad():
            total = losses(leaves[1:], leaves[0]).sum()
        step, *gradients = torch.autograd.grad(total, leaves)
        moved += step
        z = torch.baddbmm(z, gram, step, alpha=-descent.lr)
        for weight, gradient in zip(upper, gradients, strict=True):
            weight.sub_(gradient, alpha=descent.lr)
    ends = [torch.baddbmm(first, moved.mT, x, alpha=-descent.lr)]
    if has_bias:
        ends.append(weights[1] - descent.lr * moved.sum(1))
    return ends + upper
