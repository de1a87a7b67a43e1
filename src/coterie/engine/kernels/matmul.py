"""Products of many clients' samples with a few matrices.

Either every client's product is done by itself, or the samples of all clients are copied to one
place and make one long product: small ones are faster so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine.kernels.large_products import product

# From so many multiplications on a client's product is done by itself.
CALL_WORK = 7 * 2**20


def selected_outputs(
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
    if client_by_client(x, first.shape[1]):
        places = range(len(out)) if clients is None else clients.tolist()
        for outputs, j, client in zip(out, index.tolist(), places, strict=True):
            torch.mm(first[j], x[client].T, out=outputs)
    else:  # one long product for each of the k layers
        for j in index.unique().tolist():
            here = torch.nonzero(index == j).flatten()
            samples = select_clients(x, here) if clients is None else x[clients[here]]
            outputs = product(first[j], samples.flatten(0, 1).T)
            out[here] = outputs.view(-1, len(here), x.shape[1]).transpose(0, 1)
    if bias is not None:
        out += bias[index][:, :, None]


def sum_of_combinations(combinations: Tensor, x: Tensor, here: Tensor, weights: Tensor) -> Tensor:
    """Combinations [m, h, n] of the samples [m, n, f] of clients `here`, weighted: [h, f]."""
    if client_by_client(x, combinations.shape[1]):
        total = x.new_zeros(combinations.shape[1], x.shape[2])
        for i, weight in zip(here.tolist(), weights.tolist(), strict=True):
            total.addmm_(combinations[i], x[i], alpha=weight)
        return total
    # One product over all samples of all clients.
    weighted = select_clients(combinations, here) * weights[:, None, None]
    return weighted.transpose(0, 1).flatten(1) @ select_clients(x, here).flatten(0, 1)


def client_by_client(x: Tensor, width: int) -> bool:
    """Whether products of samples [m, n, f] and `width` rows are done client by client."""
    return x.is_cpu and width * x[0].numel() >= CALL_WORK


def select_clients(values: Tensor, here: Tensor) -> Tensor:
    """The rows `here`, increasing, of values [m, ...]; no copy if these are all."""
    return values if len(here) == len(values) else values[here]
