"""Sample space: gradient descent through a first linear layer without its weights.

A gradient by the first layer's weights W is a combination of the samples it was taken on. So
instead of W [h, f] the outputs Z = W X' + b [h, n] are carried along, and the gradients by them are
added up in S [h, n]. In a step on the samples B with gradient dZ [h, |B|]:

    Z <- Z - lr dZ (X_B X' + 1),    S_B <- S_B + dZ

and at the end W = W_0 - lr S X, b = b_0 - lr S 1. (The 1 in the brackets belongs to the bias.) A
step costs n |B| h instead of 2 |B| f h multiplications, and touches Z in place of W: mini-batches,
which otherwise wait for the weights to come from memory, gain most. W itself is formed only if
somebody looks at it (displaced.py). X X' is the same in every round and kept while there is room
(gram_cache.py).

A pull towards an anchor A and weight decay shrink all that there is by a factor, and the pull adds
some of A: W is a multiple of W_0, one of A and a combination of samples, and Z the same of their
outputs; a bias, which weight decay spares, is then carried along by itself. Weights of samples only
change dZ. With momentum the velocity V is such a sum as well: its outputs U = V X' and its
combination are carried along as Z and S are. What is not linear in the gradient, clipping and Adam,
is done on the weights (first_layer_terms.py). The result is that of ordinary descent, to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.kernel import Descent
from coterie.core.rows import Rows
from coterie.engine.kernels.blocks import block_size
from coterie.engine.kernels.displaced import BaseModels, DisplacedModels
from coterie.engine.kernels.first_layer_terms import (
    FirstLayerTerms,
    SparedBias,
    tensor_like,
)
from coterie.engine.kernels.gram_cache import GramCache
from coterie.engine.kernels.linear_layers import LinearLayers, ScratchBuffers
from coterie.engine.kernels.matmul import selected_outputs
from coterie.engine.kernels.objective import (
    MiniBatches,
    ObjectiveTerms,
    full_batch_weights,
    zero_if_finished,
)
from coterie.tensors.devices import cache_bytes
from coterie.tensors.lazy import Lazy
from coterie.tensors.optimizers import Optimizer

# What the outputs that a thread works on may occupy: half to twice as much is about as fast.
BLOCK_BYTES = 2 * 2**20
# What a step does besides multiplying, for each weight or each output of the first layer, takes as
# long as so many multiplications. Fitted to the times of 32 shapes on one and on two cores.
WEIGHT_WORK, OUTPUT_WORK = 130, 80


def is_faster(
    rows: Rows, descent: Descent, terms: FirstLayerTerms, width: int, shared: bool
) -> bool:
    """Whether first layers of `width` outputs are better not formed.

    Clients whose start is not `shared` have a model each, and where they end will be formed too.
    """
    n, f, steps = rows.y.shape[1], rows.x[0, 0].numel(), max(descent.steps)
    batch = n if descent.batches is None else descent.batches[0].shape[1]
    seen = min(n, steps * batch)  # samples of a client
    products = 1 + terms.trained + (terms.trained and terms.pull > 0)
    work = (products * seen + (0 if shared else WEIGHT_WORK)) * f * width
    if terms.trained and steps > 1:
        # The inner products of samples count half, for those of many clients are kept.
        work += seen**2 * f // 2 + steps * seen * (batch + OUTPUT_WORK) * width
    return bool(work < steps * f * width * (2 * batch + WEIGHT_WORK))


class SampleSpaceDescent:
    """One descent of a chunk of clients that carries first-layer outputs along, not weights."""

    def __init__(
        self,
        network: LinearLayers,
        grams: GramCache,
        start: BaseModels,
        rows: Rows,
        descent: Descent,
        first_terms: FirstLayerTerms,
    ) -> None:
        layout = network.task.layout
        self.network, self.grams, self.start = network, grams, start
        self.rows, self.steps, self.rule = rows, descent.steps, descent.rule
        self.equal_steps = len(set(descent.steps)) == 1
        self.plain = descent.rule.optimizer == "sgd"
        self.first_terms = first_terms
        self.spares = network.has_bias and first_terms.trained and first_terms.weight_decay > 0
        self.spared_ends: list[Tensor] = []  # [b, h] of each block, if spared
        self.ids = descent.ids  # [m] whose samples the rows are; None: only some of theirs
        self.outputs = start.activations  # [m, h, n] of the first layer, if known
        self.batches = MiniBatches.of(descent, layout.dtype, rows.y.device)
        if self.batches is not None and self.batches.place[0].numel() < rows.y.shape[1]:
            self._leave_out_unseen_samples(self.batches)
        self.x = self.rows.x.flatten(2)
        self.weight = None  # [m, n] what samples count
        if self.batches is None:
            self.weight = full_batch_weights(rows, layout.dtype, descent.weights)
        self.anchor = None if descent.anchor is None else BaseModels(descent.anchor)
        shared_anchor = None if self.anchor is None else self.anchor.models
        self.upper_terms = ObjectiveTerms(layout, descent._replace(anchor=shared_anchor))
        if self.anchor is not None:
            self.upper_terms.select(network.upper_names, self.anchor.index)

    def _leave_out_unseen_samples(self, batches: MiniBatches) -> None:
        """Keep the samples that some step sees: the columns are then the steps' own, in order."""
        place = batches.place.flatten(1)
        if self.outputs is not None:
            self.outputs = select_columns(self.outputs, place)
        self.rows, self.ids = self.rows.take(place), None
        place = torch.arange(place.shape[1], device=place.device)
        place = place.view(batches.place.shape[1:]).expand_as(batches.place)
        self.batches = batches._replace(place=place)

    def run(self) -> Tensor:
        """Where every client's model ends, [m, d], not formed."""
        start, anchor, terms = self.start, self.anchor, self.first_terms
        z = self._first_outputs(start) if self.outputs is None else self.outputs
        anchor_z = None  # what the anchor's first layer makes of the samples
        if anchor is not None and terms.pull and terms.trained:
            anchor_z = z if anchor.equals(start) else self._first_outputs(anchor)
        upper = [layer[start.index] for layer in self.network.split_first(start.models)[2]]
        combinations = self._descend(z, anchor_z, upper)
        left, came = terms.base_shares(self.steps, z)
        bases = [(start, left)]
        if anchor is not None and came is not None:
            bases.append((anchor, came))
        bias = self.spared_ends and [torch.cat(self.spared_ends)]
        if self.network.has_bias and not self.spares:
            bias = [self._end_of_bias(bases, combinations)]
        ends = [end.flatten(1) for end in (*bias, *upper)]
        rest = torch.cat(ends, 1) if ends else z.new_empty(len(z), 0)
        width = self.network.width * self.x.shape[2]
        return Lazy(DisplacedModels(bases, combinations, self.x, rest, width))

    def _first_outputs(self, base: BaseModels) -> Tensor:
        """The first layer's outputs [m, h, n] of every client's model."""
        if not base.shared:
            return self.network.first_outputs(self.network.split(base.models), self.x)
        first, bias, _ = self.network.split_first(base.models)
        z = first.new_empty(len(self.x), first.shape[1], self.x.shape[1])
        selected_outputs(first, bias, base.index, self.x, None, z)
        return z

    def _end_of_bias(
        self, bases: list[tuple[BaseModels, Tensor | None]], combinations: Tensor | None
    ) -> Tensor:
        """Where the first layer's bias [m, h] ends."""
        end = torch.zeros((), device=self.start.models.device)
        for base, share in bases:
            bias = self._biases(base)
            end = end + (bias if share is None else share[:, None] * bias)
        return end if combinations is None else end + combinations.sum(2)

    def _biases(self, base: BaseModels) -> Tensor:
        """The first layer's bias [m, h] of every client's model."""
        return self.network.split(base.models)[1][base.index]

    def _spared_bias(self, here: slice) -> SparedBias | None:
        """The biases of some clients where weight decay pulls the rest of their layer."""
        if not self.spares:
            return None
        pulled = self.anchor is not None and self.first_terms.pull > 0
        anchor = self._biases(self.anchor)[here] if self.anchor is not None and pulled else None
        return SparedBias(self.first_terms, self._biases(self.start)[here], anchor)

    def _descend(self, z: Tensor, anchor_z: Tensor | None, upper: list[Tensor]) -> Tensor | None:
        """Descend from first-layer outputs z [m, h, n]; those of the anchor attract, if any.

        The `upper` weights are changed in place. Gives - lr S [m, h, n]; None if first layers stay.
        """
        total = torch.empty_like(z) if self.first_terms.trained else None
        largest = max(z.shape[1], z.shape[2]) * z.shape[2] * z.element_size()
        block = block_size(len(z), cache_bytes(z.device, BLOCK_BYTES) // largest)
        scratch = ScratchBuffers()
        for begin in range(0, len(z), block):
            here = slice(begin, begin + block)
            own = [weight[here] for weight in upper]
            if total is None:
                self._descend_upper(here, z[here], own, scratch)
                continue
            descend = (
                self._descend_with_momentum if self.first_terms.momentum else self._descend_block
            )
            attracting = None if anchor_z is None else anchor_z[here]
            descend(here, z[here], attracting, own, total[here], scratch)
        return total

    def _descend_upper(
        self, here: slice, z: Tensor, upper: list[Tensor], scratch: ScratchBuffers
    ) -> None:
        """The descent of some clients whose first layers stay."""
        optimizer = self._optimizer()
        for step in range(max(self.steps[here])):
            self._upper_step(here, step, z, upper, scratch, optimizer)

    def _descend_block(
        self,
        here: slice,
        z: Tensor,
        anchor_z: Tensor | None,
        upper: list[Tensor],
        total: Tensor,
        scratch: ScratchBuffers,
    ) -> None:
        """The descent of some clients; where they come to is put into `upper` and `total`."""
        terms, last, optimizer = self.first_terms, max(self.steps[here]) - 1, self._optimizer()
        shrinkage = terms.shrinkage
        total.zero_()
        gram, bias = None, self._spared_bias(here)
        if last > 0:
            z, gram = z.clone(), self._gram(here)
        for step in range(last + 1):
            slopes = self._upper_step(here, step, z, upper, scratch, optimizer)
            if shrinkage != 1:
                total *= self._shrinkage(here, step, total)
            place = self._add_slopes(total, slopes, here, step)
            if gram is not None and step < last:  # nobody looks at where the last step leads
                reach = gram if place is None else select_gram_rows(gram, place)
                z.baddbmm_(slopes, reach, beta=shrinkage, alpha=-terms.lr)
                if anchor_z is not None:
                    z.add_(anchor_z, alpha=terms.lr * terms.pull)
                if bias is not None:
                    z.add_(bias.now[:, :, None], alpha=terms.lr * terms.weight_decay)
            if bias is not None:
                bias.step(slopes, self.steps[here], step)
        total *= -terms.lr
        self.spared_ends += [] if bias is None else [bias.now]

    def _descend_with_momentum(
        self,
        here: slice,
        z: Tensor,
        anchor_z: Tensor | None,
        upper: list[Tensor],
        total: Tensor,
        scratch: ScratchBuffers,
    ) -> None:
        """The same with momentum: the velocity's combination and outputs are carried along."""
        terms, last, optimizer = self.first_terms, max(self.steps[here]) - 1, self._optimizer()
        velocity, outputs = torch.zeros_like(total.zero_()), torch.zeros_like(z)
        gram, bias = None, self._spared_bias(here)
        if last > 0:
            z, gram = z.clone(), self._gram(here)
        for step in range(last + 1):
            slopes = self._upper_step(here, step, z, upper, scratch, optimizer)
            velocity *= terms.momentum
            if terms.strength:
                velocity.add_(total, alpha=terms.strength)
            place = self._add_slopes(velocity, slopes, here, step)
            moved = velocity
            if not self.equal_steps:
                moved = zero_if_finished(velocity, self.steps[here], step)
            total.sub_(moved, alpha=terms.lr)
            if gram is not None and step < last:
                reach = gram if place is None else select_gram_rows(gram, place)
                outputs.baddbmm_(slopes, reach, beta=terms.momentum)
                if terms.strength:
                    outputs.add_(z, alpha=terms.strength)
                if anchor_z is not None:
                    outputs.sub_(anchor_z, alpha=terms.pull)
                if bias is not None:
                    outputs.sub_(bias.now[:, :, None], alpha=terms.weight_decay)
                z.sub_(outputs, alpha=terms.lr)
            if bias is not None:
                bias.step(slopes, self.steps[here], step)
        self.spared_ends += [] if bias is None else [bias.now]

    def _add_slopes(self, total: Tensor, slopes: Tensor, here: slice, step: int) -> Tensor | None:
        """Add the derivatives of a step to `total` [b, h, n]; the columns [b, s] they belong to."""
        if self.batches is None:
            total += slopes
            return None
        place = self.batches.place[here, step]
        total.scatter_add_(2, column_index(place, len(slopes[0])), slopes)
        return place

    def _optimizer(self) -> Optimizer:
        """A fresh optimiser of the weights above the first layer."""
        return self.rule.begin_optimizer()

    def _upper_step(
        self,
        here: slice,
        step: int,
        z: Tensor,
        upper: list[Tensor],
        scratch: ScratchBuffers,
        optimizer: Optimizer,
    ) -> Tensor:
        """Make a step with the weights above the first layer, in place.

        Gives the derivative by the first layer's outputs on the samples of this step.
        """
        y = self.rows.y[here]
        if self.batches is None:
            assert self.weight is not None
            weight = self.weight[here]
        else:
            place, weight = self.batches.place[here, step], self.batches.weight[here, step]
            z, y = select_columns(z, place), y.gather(1, place)
        slopes, gradients = self.network.upper_gradients(z, upper, y, weight, scratch)
        terms = self.upper_terms
        gradients = terms.gradients(self.network.upper_names, gradients, upper, here)
        # The losses of a client that has finished have no weight.
        alike = self.equal_steps or (terms.is_empty and self.plain)
        for piece, direction in zip(upper, optimizer.directions(gradients), strict=True):
            if not alike:
                direction = zero_if_finished(direction, self.steps[here], step)
            piece.sub_(direction, alpha=self.rule.lr)
        return slopes

    def _gram(self, here: slice) -> Tensor:
        """The inner products [b, n, n] of clients' samples, of their 1 for the bias as well."""
        gram = self.grams.of(self.x[here], None if self.ids is None else self.ids[here])
        return gram.add_(1) if self.network.has_bias else gram

    def _shrinkage(self, here: slice, step: int, like: Tensor) -> float | Tensor:
        """What a step leaves of what was; everything where a client has finished."""
        steps = self.steps[here]
        if min(steps) > step:
            return self.first_terms.shrinkage
        shares = [self.first_terms.shrinkage if step < count else 1.0 for count in steps]
        return tensor_like(shares, like)[:, None, None]


def select_columns(values: Tensor, place: Tensor) -> Tensor:
    """The columns `place` [m, b] of values [m, h, n]."""
    return values.gather(2, column_index(place, values.shape[1]))


def column_index(place: Tensor, height: int) -> Tensor:
    """Columns [m, b] for each of so many rows."""
    return place[:, None].expand(-1, height, -1)


def select_gram_rows(grams: Tensor, place: Tensor) -> Tensor:
    """The rows `place` [m, b] of matrices [m, n, n]."""
    n = grams.shape[1]
    row = place + n * torch.arange(len(place), device=place.device)[:, None]
    return grams.flatten(0, 1).index_select(0, row.flatten()).view(*place.shape, n)
