"""Sample space: full-batch gradient descent through a first linear layer without its weights.

With all samples X in every step, the first layer's weights W move only by combinations of X. So
instead of W [h, f] the activations Z = W X' + b [h, n] are carried along, and the gradient steps
are added up in S [h, n]:

    Z <- Z - lr dZ (X X' + 1),    S <- S + dZ;    at the end  W = W_0 - lr S X,  b = b_0 - lr S 1

(the 1 belongs to the bias). A step costs n^2 h instead of 2 n f h multiplications, which pays when
a client has fewer samples than features. W itself is formed only if somebody looks at it: the sum
over clients that started from one model is n W_0 - lr (S_1 X_1 + S_2 X_2 + ...), one long product.
The result is that of ordinary descent, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows
from coterie.core.devices import room
from coterie.core.lazy import Picked, add_up
from coterie.engine.stack import Slope, Stack

# What the activations that are worked on at a time may occupy: they should stay in the cache.
BLOCK_BYTES = 2**20


def pays(rows: Rows, descent: Descent) -> bool:
    """Whether a descent stays in the span of its samples, and is cheaper there.

    Mini-batches, pulls and frozen coordinates leave the span; they are done in the ordinary way.
    """
    in_span = descent.batches is None and descent.only is None
    unpulled = descent.anchor is None and descent.weight_decay == 0
    samples, features = rows.y.shape[1], rows.x[0, 0].numel()
    return in_span and unpulled and descent.steps[0] > 1 and samples < features


class Moved:
    """Where descent ends: first layers moved by combinations of each client's samples.

    A vector begins with the first layer's weights [h, f]; what lies behind them is at hand.
    """

    def __init__(self, first: Picked | Tensor, moved: Tensor, x: Tensor, rest: Tensor) -> None:
        self.first = first  # m of [h f], where the first layers began
        self.moved = moved  # [m, h, n] - lr S
        self.x = x  # [m, n, f]
        self.rest = rest  # [m, d - h f] where everything else ended

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rest), self.first.shape[1] + self.rest.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.rest.dtype

    @property
    def device(self) -> torch.device:
        return self.rest.device

    def dense(self) -> Tensor:
        first = self.first.dense() if isinstance(self.first, Picked) else self.first
        end = first.new_empty(self.shape)
        torch.bmm(self.moved, self.x, out=end[:, : first.shape[1]].view(self._as_matrices()))
        end[:, : first.shape[1]] += first
        end[:, first.shape[1] :] = self.rest
        return end

    def add_to(self, sums: Tensor, member: Tensor) -> None:
        first, rest = sums.split([self.first.shape[1], self.rest.shape[1]], 1)
        add_up(rest, member, self.rest)
        if isinstance(self.first, Picked):
            self.first.add_to(first, member)
        else:
            add_up(first, member, self.first)
        for cluster, weights in enumerate(member):
            here = torch.nonzero(weights).flatten()
            if len(here):
                moved, x = some(self.moved, here), some(self.x, here)
                moved = moved * weights[here].to(self.dtype)[:, None, None]
                # One product over all samples of all clients in the cluster.
                first[cluster] += (moved.transpose(0, 1).flatten(1) @ x.flatten(0, 1)).flatten()

    def _as_matrices(self) -> tuple[int, int, int]:
        return len(self.x), self.moved.shape[1], self.x.shape[2]


def activations(first: Tensor, bias: Tensor | None, index: Tensor, x: Tensor) -> Tensor:
    """Outputs [m, h, n] of first layers [k, h, f] on samples [m, n, f], client i with `index[i]`.

    One long product for each of the k layers.
    """
    m, n, _ = x.shape
    z = first.new_empty(m, first.shape[1], n)
    for j in index.unique().tolist():
        here = torch.nonzero(index == j).flatten()
        product = first[j] @ some(x, here).flatten(0, 1).T
        if bias is not None:
            product += bias[j][:, None]
        outputs = product.view(-1, len(here), n).transpose(0, 1)
        if len(here) == m:
            return outputs.contiguous()
        z[here] = outputs
    return z


def some(values: Tensor, here: Tensor) -> Tensor:
    """The rows `here`, increasing, of values [m, ...]; no copy if these are all."""
    return values if len(here) == len(values) else values[here]


def descend(
    z: Tensor,
    x: Tensor,
    bias: Tensor | None,
    upper: list[Tensor],
    stack: Stack,
    slopes: Callable[[slice], Slope],
    descent: Descent,
) -> tuple[Tensor, list[Tensor]]:
    """Descent from first-layer outputs z [m, h, n] on samples x [m, n, f].

    `bias` [m, h] is the first layer's, `upper` are the weights of the layers above, `slopes(here)`
    is the derivative of the losses of some clients by their outputs. Gives - lr S [m, h, n] and
    where the bias and the upper weights end.
    """
    upper, moved = [weight.clone() for weight in upper], torch.zeros_like(z)
    block = max(1, room(z.device, BLOCK_BYTES) // (z[0].numel() * z.element_size()))
    for begin in range(0, len(z), block):
        here = slice(begin, begin + block)
        slope, own = slopes(here), [weight[here] for weight in upper]
        gram = torch.bmm(x[here], x[here].mT)  # [block, n, n]
        if bias is not None:
            gram += 1
        now = z[here].clone()
        for left in reversed(range(descent.steps[0])):
            step, gradients = stack.gradients(now, own, slope)
            moved[here].sub_(step, alpha=descent.lr)
            for weight, gradient in zip(own, gradients, strict=True):
                weight.sub_(gradient, alpha=descent.lr)
            if left:  # nobody looks at where the last step leads
                now.baddbmm_(step, gram, alpha=-descent.lr)
    return moved, upper if bias is None else [bias + moved.sum(2), *upper]
