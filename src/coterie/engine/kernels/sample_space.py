"""Sample space: gradient descent through a first linear layer without its weights.

A gradient by the first layer's weights W is a combination of the samples it was taken on. So
instead of W [h, f] the outputs Z = W X' + b [h, n] are carried along, and the gradients by them are
added up in S [h, n]. In a step on the samples B with gradient dZ [h, |B|]:

    Z <- Z - lr dZ (X_B X' + 1),    S_B <- S_B + dZ

and at the end W = W_0 - lr S X, b = b_0 - lr S 1. (The 1 in the brackets belongs to the bias.) A
step costs n |B| h instead of 2 |B| f h multiplications, and touches Z in place of W: mini-batches,
which otherwise wait for the weights to come from memory, gain most. W itself is formed only if
somebody looks at it (displaced.py). X X' is the same in every round and kept while there is room.

A pull towards an anchor A and weight decay shrink all that there is by a factor, and the pull adds
some of A: W is a multiple of W_0, one of A and a combination of samples, and Z the same of their
outputs. The result is that of ordinary descent, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.cohort import Descent, Rows
from coterie.engine.kernels.linear_layers import Scratch, Slope, Stack
from coterie.engine.kernels.minibatches import Batches
from coterie.tensors.devices import cache_bytes

# What the outputs that a thread works on may occupy: half to twice as much is about as fast.
BLOCK_BYTES = 2 * 2**20
# What the products X X' of clients may occupy that are kept from one round to the next, and how
# many multiplications make one worth keeping: a small one is sooner worked out than looked up.
GRAM_BYTES = 64 * 2**20
GRAM_WORK = 2**19
# What a step does besides multiplying, for each weight or each output of the first layer, takes as
# long as so many multiplications. Fitted to the times of 32 shapes on one and on two cores.
WEIGHT_WORK, OUTPUT_WORK = 130, 80


class Course(NamedTuple):
    """What happens to first layers in a descent besides the gradients of losses."""

    lr: float  # step size
    learns: bool  # whether they move at all
    pull: float  # strength of the pull towards the anchor
    weight_decay: float  # strength of the pull towards zero

    @classmethod
    def of(cls, descent: Descent, width: int) -> Course | None:
        """The course of the first `width` coordinates; None if they are not treated alike."""
        learns, pull = True, 0.0
        if descent.part is not None:
            moving = int(descent.part[:width].sum())
            if moving not in (0, width):
                return None
            learns = moving > 0
        if descent.anchor is not None and descent.pull is not None:
            low, high = descent.pull[:width].aminmax()
            if low != high:
                return None
            pull = float(low)
        return cls(descent.lr, learns, pull, descent.weight_decay)

    @property
    def kept(self) -> float:
        """What a step leaves of where first layers were."""
        return 1 - self.lr * (self.pull + self.weight_decay) if self.learns else 1.0

    def shares(self, steps: list[int], like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What is left of the start after so many steps [m], and how much of the anchor came in.

        None stands for all of the one and nothing of the other.
        """
        strength = self.pull + self.weight_decay
        if not self.learns or strength == 0:
            return None, None
        left = [self.kept**count for count in steps]
        came = [self.pull / strength * (1 - share) for share in left]
        return numbers(left, like), numbers(came, like) if self.pull else None


def pays(rows: Rows, descent: Descent, course: Course, width: int, shared: bool) -> bool:
    """Whether first layers of `width` outputs are better not formed.

    Clients whose start is not `shared` have a model each, and where they end will be formed too.
    """
    n, f, steps = rows.y.shape[1], rows.x[0, 0].numel(), max(descent.steps)
    batch = n if descent.batches is None else descent.batches[0].shape[1]
    seen = min(n, steps * batch)  # samples of a client
    products = 1 + course.learns + (course.learns and course.pull > 0)
    work = (products * seen + (0 if shared else WEIGHT_WORK)) * f * width
    if course.learns and steps > 1:
        # The inner products of samples count half, for those of many clients are kept.
        work += seen**2 * f // 2 + steps * seen * (batch + OUTPUT_WORK) * width
    return work < steps * f * width * (2 * batch + WEIGHT_WORK)


def taken(values: Tensor, place: Tensor) -> Tensor:
    """The columns `place` [m, b] of values [m, h, n]."""
    return values.gather(2, spread(place, values.shape[1]))


def spread(place: Tensor, height: int) -> Tensor:
    """Columns [m, b] for each of so many rows."""
    return place[:, None].expand(-1, height, -1)


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


# (which clients, their weights above the first layer, the gradients by these, number of the step)
Above = Callable[[slice, list[Tensor], list[Tensor], int], None]


class Descending(NamedTuple):
    """How the clients of a chunk descend."""

    course: Course
    steps: list[int]  # [m] of each client
    batches: Batches | None  # None: all samples in every step
    slope: Callable[[slice, int], Slope]  # the derivative of some clients' losses in a step
    gram: Callable[[slice], Tensor]  # X X' of some clients, + 1 if there is a bias
    stack: Stack  # the layers above the first
    step_above: Above  # changes the weights of these in place

    def from_outputs(self, z: Tensor, anchor: Tensor | None, upper: list[Tensor]) -> Tensor | None:
        """Descend from first-layer outputs z [m, h, n]; those of the anchor attract, if any.

        The `upper` weights are changed in place. Gives - lr S [m, h, n]; None if nothing of it
        moves.
        """
        moved = torch.empty_like(z) if self.course.learns else None
        largest = max(z.shape[1], z.shape[2]) * z.shape[2] * z.element_size()
        block = even(len(z), cache_bytes(z.device, BLOCK_BYTES) // largest)
        scratch = Scratch()
        for begin in range(0, len(z), block):
            here = slice(begin, begin + block)
            self._some(here, z, anchor, [weight[here] for weight in upper], moved, scratch)
        return moved

    def _some(
        self,
        here: slice,
        z: Tensor,
        anchor: Tensor | None,
        upper: list[Tensor],
        moved: Tensor | None,
        scratch: Scratch,
    ) -> None:
        """The descent of some clients; where they come to is put into `upper` and `moved`."""
        course, last = self.course, max(self.steps[here]) - 1
        now = z[here]
        gram = None
        if moved is not None:
            moved[here] = 0
            if last > 0:
                now, gram = now.clone(), self.gram(here)
        for step in range(last + 1):
            place = None if self.batches is None else self.batches.place[here, step]
            outputs = now if place is None else taken(now, place)
            first, others = self.stack.gradients(outputs, upper, self.slope(here, step), scratch)
            self.step_above(here, upper, others, step)
            if moved is None:
                continue
            total = moved[here]
            if course.kept != 1:
                total *= self._kept(here, step, total)
            if place is None:
                total += first
            else:
                total.scatter_add_(2, spread(place, len(first[0])), first)
            if gram is not None and step < last:  # nobody looks at where the last step leads
                reach = gram if place is None else gram_rows(gram, place)
                now.baddbmm_(first, reach, beta=course.kept, alpha=-course.lr)
                if anchor is not None:
                    now.add_(anchor[here], alpha=course.lr * course.pull)
        if moved is not None:
            moved[here] *= -course.lr

    def _kept(self, here: slice, step: int, like: Tensor) -> float | Tensor:
        """What a step leaves of what was; everything where a client has finished."""
        steps = self.steps[here]
        if min(steps) > step:
            return self.course.kept
        shares = [self.course.kept if step < count else 1.0 for count in steps]
        return numbers(shares, like)[:, None, None]


def numbers(values: list[float], like: Tensor) -> Tensor:
    """Numbers in the type and on the device of another tensor."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def gram_rows(grams: Tensor, place: Tensor) -> Tensor:
    """The rows `place` [m, b] of matrices [m, n, n]."""
    n = grams.shape[1]
    row = place + n * torch.arange(len(place), device=place.device)[:, None]
    return grams.flatten(0, 1).index_select(0, row.flatten()).view(*place.shape, n)


def even(count: int, most: int) -> int:
    """The size of blocks of about `most` of so many clients: of like size, and no thread idle."""
    blocks = -(-count // max(1, most))
    threads = torch.get_num_threads()
    return -(-count // (blocks * threads)) * threads
