"""Sample space: full-batch gradient descent through a first linear layer without its weights.

With all samples X in every step, the first layer's weights W move only by combinations of X. So
instead of W [h, f] the activations Z = W X' + b [h, n] are carried along, and the gradient steps
are added up in S [h, n]:

    Z <- Z - lr dZ (X X' + 1),    S <- S + dZ;    at the end  W = W_0 - lr S X,  b = b_0 - lr S 1

(the 1 belongs to the bias). A step costs n^2 h instead of 2 n f h multiplications, which pays when
a client has fewer samples than features. The result is that of ordinary descent, to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows
from coterie.engine.stack import Slope, Stack


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
    stack: Stack,
    rows: Rows,
    descent: Descent,
    slope: Slope,
) -> list[Tensor]:
    """The weights of all layers, each with a client axis, after descent from `weights`.

    `stack` has the layers above the first one, `slope` the derivative of the losses by the outputs.
    """
    x = rows.x.flatten(2)
    first, upper = weights[0], [weight.clone() for weight in weights[1 + has_bias :]]
    gram = torch.bmm(x, x.mT)  # [m, n, n]
    if has_bias:
        z = torch.baddbmm(weights[1][:, :, None], first, x.mT)
        gram += 1
    else:
        z = torch.bmm(first, x.mT)
    moved = torch.zeros_like(z)  # S
    for _ in range(descent.steps[0]):
        step, gradients = stack.gradients(z, upper, slope)
        moved += step
        z.baddbmm_(step, gram, alpha=-descent.lr)
        for weight, gradient in zip(upper, gradients, strict=True):
            weight.sub_(gradient, alpha=descent.lr)
    ends = [torch.baddbmm(first, moved, x, alpha=-descent.lr)]
    if has_bias:
        ends.append(weights[1] - descent.lr * moved.sum(2))
    return ends + upper
