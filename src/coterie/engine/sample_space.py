"""Sample space: full-batch gradient descent through a first linear layer without its weights.

With all samples X in every step, the first layer's weights W move only by combinations of X. So
instead of W [h, f] the activations Z = W X' + b [h, n] are carried along, and the gradient steps
are added up in S [h, n]:

    Z <- Z - lr dZ (X X' + 1),    S <- S + dZ;    at the end  W = W_0 - lr S X,  b = b_0 - lr S 1

(the 1 belongs to the bias). A step costs n^2 h instead of 2 n f h multiplications, which pays when
a client has fewer samples than features. W itself is formed only if somebody looks at it: the sum
over clients that started from one model is n W_0 - lr (S_1 X_1 + S_2 X_2 + ...). X X' is the same
in every round and kept, as long as there is room. The result is that of ordinary descent, to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows
from coterie.core.devices import room
from coterie.core.lazy import Picked, add_up
from coterie.engine.stack import Scratch, Slope, Stack

# What the activations that are worked on at a time may occupy: they should stay in the cache.
BLOCK_BYTES = 2**20
# What the products X X' of clients may occupy that are kept from one round to the next, and how
# many multiplications make one worth keeping: a small one is sooner worked out than looked up.
GRAM_BYTES = 64 * 2**20
GRAM_WORK = 2**19
# From so many multiplications on a client's product is done by itself rather than as part of a
# longer one, for which the samples of all clients would have to be copied to one place.
CALL_WORK = 7 * 2**20


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
        for total, weights in zip(first, member.to(self.dtype), strict=True):
            here = torch.nonzero(weights).flatten()
            if len(here):
                total += self._sum_of_moves(here, weights[here]).flatten()

    def _sum_of_moves(self, here: Tensor, weights: Tensor) -> Tensor:
        """How far the first layers [h, f] of the clients `here` moved, weighted and added up."""
        if worth_a_call(self.x, self.moved.shape[1]):
            total = self.x.new_zeros(self._as_matrices()[1:])
            for i, weight in zip(here.tolist(), weights.tolist(), strict=True):
                total.addmm_(self.moved[i], self.x[i], alpha=weight)
            return total
        # One product over all samples of all clients.
        moved = some(self.moved, here) * weights[:, None, None]
        return moved.transpose(0, 1).flatten(1) @ some(self.x, here).flatten(0, 1)

    def _as_matrices(self) -> tuple[int, int, int]:
        return len(self.x), self.moved.shape[1], self.x.shape[2]


def activations(
    first: Tensor,
    bias: Tensor | None,
    index: Tensor,
    x: Tensor,
    clients: Tensor | None,
    out: Tensor,
) -> None:
    """Outputs [c, h, n] of first layers [k, h, f] on samples [m, n, f], put into `out`.

    The i-th is that of layer `index[i]` on the samples of client `clients[i]`; None: of client i.
    """
    if worth_a_call(x, first.shape[1]):
        places = range(len(out)) if clients is None else clients.tolist()
        for product, j, client in zip(out, index.tolist(), places, strict=True):
            torch.mm(first[j], x[client].T, out=product)
    else:  # one long product for each of the k layers
        for j in index.unique().tolist():
            here = torch.nonzero(index == j).flatten()
            samples = some(x, here) if clients is None else x[clients[here]]
            product = first[j] @ samples.flatten(0, 1).T
            out[here] = product.view(-1, len(here), x.shape[1]).transpose(0, 1)
    if bias is not None:
        out += bias[index][:, :, None]


def worth_a_call(x: Tensor, width: int) -> bool:
    """Whether products of samples [m, n, f] and `width` rows are done client by client."""
    return x.is_cpu and width * x[0].numel() >= CALL_WORK


def some(values: Tensor, here: Tensor) -> Tensor:
    """The rows `here`, increasing, of values [m, ...]; no copy if these are all."""
    return values if len(here) == len(values) else values[here]


class Grams:
    """The products X X' [n, n] of clients' samples, which are the same in every round.

    The first clients that come are kept as long as there is room, whatever their number.
    """

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}
        self.room = GRAM_BYTES

    def of(self, x: Tensor, ids: Tensor | None) -> Tensor:
        """The products [b, n, n] for samples [b, n, f], all that the clients `ids` have."""
        n, f = x.shape[1:]
        if ids is None or n * n * f < GRAM_WORK:
            return torch.bmm(x, x.mT)
        clients = ids.tolist()
        known = [gram for i in clients if (gram := self.held.get(i)) is not None and len(gram) == n]
        if len(known) == len(clients):
            return torch.stack(known)
        grams = torch.bmm(x, x.mT)
        for i, gram in zip(clients, grams, strict=True):
            if i not in self.held and gram.nbytes <= self.room:
                self.held[i] = gram.clone()
                self.room -= gram.nbytes
        return grams


def descend(
    z: Tensor,
    bias: Tensor | None,
    upper: list[Tensor],
    stack: Stack,
    moves: Callable[[slice], Slope],
    grams: Callable[[slice], Tensor],
    steps: int,
) -> tuple[Tensor, list[Tensor]]:
    """Descent from first-layer outputs z [m, h, n].

    `bias` [m, h] is the first layer's, `upper` are the weights of the layers above, `moves(here)`
    is - lr times the derivative of the losses of some clients by their outputs, `grams(here)` their
    X X'. Gives - lr S [m, h, n] and where the bias and the upper weights end.
    """
    upper, moved, scratch = [weight.clone() for weight in upper], torch.empty_like(z), Scratch()
    block = even(len(z), room(z.device, BLOCK_BYTES) // (z[0].numel() * z.element_size()))
    for begin in range(0, len(z), block):
        here = slice(begin, begin + block)
        move, own = moves(here), [weight[here] for weight in upper]
        gram = grams(here)  # [block, n, n]
        if bias is not None:
            gram += 1
        now = z[here].clone()
        for step in range(steps):
            first, others = stack.gradients(now, own, move, scratch)
            for weight, change in zip(own, others, strict=True):
                weight.add_(change)
            if step == 0:
                moved[here] = first
            else:
                moved[here].add_(first)
            if step + 1 < steps:  # nobody looks at where the last step leads
                now.baddbmm_(first, gram)
    return moved, upper if bias is None else [bias + moved.sum(2), *upper]


def even(count: int, most: int) -> int:
    """The size of blocks of about `most` of so many clients: of like size, and no thread idle."""
    blocks = -(-count // max(1, most))
    threads = torch.get_num_threads()
    return -(-count // (blocks * threads)) * threads
