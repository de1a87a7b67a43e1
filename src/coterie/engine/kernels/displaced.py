"""Models whose first layers are sums of others and of combinations of clients' samples.

They are formed only if somebody looks at them: the sum over clients that started from one model is
one multiple of that model and one product of combinations and samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine.kernels.matmul import product
from coterie.tensors.lazy import SelectedRows, add_cluster_sums, as_selected_rows, dense

# From so many multiplications on a client's product is done by itself rather than as part of a
# longer one, for which the samples of all clients would have to be copied to one place.
CALL_WORK = 7 * 2**20


class Origin:
    """Models that clients begin with or are drawn to: shared ones, or each client's own."""

    def __init__(self, models: Tensor) -> None:
        pick = as_selected_rows(models)
        self.shared = pick is not None
        self.models: Tensor = dense(models) if pick is None else pick.models  # [k, d]
        # [m] which of them it is; each client's own is that of its place
        self.index = torch.arange(len(models), device=models.device) if pick is None else pick.index
        self.activations = None if pick is None else pick.activations  # [m, h, n], if known

    def is_that_of(self, other: Origin) -> bool:
        """Whether both are the same models."""
        one, two = self.models, other.models
        where = one.data_ptr() == two.data_ptr() and one.stride() == two.stride()
        return where and one.shape == two.shape and torch.equal(self.index, other.index)

    def dense(self, width: int) -> Tensor:
        """The first `width` coordinates of every client's model, [m, width]."""
        models = self.models[:, :width]
        return models[self.index] if self.shared else models

    def add_to(self, sums: Tensor, member: Tensor) -> None:
        """Add weighted sums of as many coordinates as `sums` [k, width] has, as a formula does."""
        models = self.models[:, : sums.shape[1]]
        if self.shared:
            SelectedRows(models, self.index).add_to(sums, member)
        else:
            add_cluster_sums(sums, member, models)


class Moved:
    """Where descent ends: first layers moved by combinations of each client's samples.

    A vector begins with the first layer's weights [h, f]; what lies behind them is at hand.
    """

    def __init__(
        self,
        origins: list[tuple[Origin, Tensor | None]],
        moved: Tensor | None,
        x: Tensor,
        rest: Tensor,
        width: int,
    ) -> None:
        self.origins = origins  # what first layers are made of, each with its share [m]; None: 1
        self.moved = moved  # [m, h, n] the combinations; None: none
        self.x = x  # [m, n, f]
        self.rest = rest  # [m, d - h f] where everything else ended
        self.width = width  # h f

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rest), self.width + self.rest.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.rest.dtype

    @property
    def device(self) -> torch.device:
        return self.rest.device

    def dense(self) -> Tensor:
        end = self.rest.new_empty(self.shape)
        first = end[:, : self.width]
        if self.moved is None:
            first.zero_()
        else:
            h, f = self.moved.shape[1], self.x.shape[2]
            torch.bmm(self.moved, self.x, out=first.view(-1, h, f))
        for origin, share in self.origins:
            layers = origin.dense(self.width)
            first += layers if share is None else share[:, None] * layers
        end[:, self.width :] = self.rest
        return end

    def add_to(self, sums: Tensor, member: Tensor) -> None:
        first, rest = sums.split([self.width, self.rest.shape[1]], 1)
        add_cluster_sums(rest, member, self.rest)
        for origin, share in self.origins:
            origin.add_to(first, member if share is None else member * share)
        if self.moved is None:
            return
        for total, weights in zip(first, member.to(self.dtype), strict=True):
            here = torch.nonzero(weights).flatten()
            if len(here):
                total += sum_of_moves(self.moved, self.x, here, weights[here]).flatten()


def sum_of_moves(moved: Tensor, x: Tensor, here: Tensor, weights: Tensor) -> Tensor:
    """Combinations [m, h, n] of the samples [m, n, f] of clients `here`, weighted: [h, f]."""
    if worth_a_call(x, moved.shape[1]):
        total = x.new_zeros(moved.shape[1], x.shape[2])
        for i, weight in zip(here.tolist(), weights.tolist(), strict=True):
            total.addmm_(moved[i], x[i], alpha=weight)
        return total
    # One product over all samples of all clients.
    weighted = some(moved, here) * weights[:, None, None]
    return product(weighted.transpose(0, 1).flatten(1), some(x, here).flatten(0, 1))


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
        for outputs, j, client in zip(out, index.tolist(), places, strict=True):
            torch.mm(first[j], x[client].T, out=outputs)
    else:  # one long product for each of the k layers
        for j in index.unique().tolist():
            here = torch.nonzero(index == j).flatten()
            samples = some(x, here) if clients is None else x[clients[here]]
            outputs = product(first[j], samples.flatten(0, 1).T)
            out[here] = outputs.view(-1, len(here), x.shape[1]).transpose(0, 1)
    if bias is not None:
        out += bias[index][:, :, None]


def worth_a_call(x: Tensor, width: int) -> bool:
    """Whether products of samples [m, n, f] and `width` rows are done client by client."""
    return x.is_cpu and width * x[0].numel() >= CALL_WORK


def some(values: Tensor, here: Tensor) -> Tensor:
    """The rows `here`, increasing, of values [m, ...]; no copy if these are all."""
    return values if len(here) == len(values) else values[here]
