"""Models that all clients share: their losses on every client's samples, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.core.rows import Rows, nan_to_inf
from coterie.engine.kernels.blocks import SHARED_OUTPUT_BYTES
from coterie.engine.kernels.large_products import product
from coterie.engine.kernels.linear_layers import LinearLayers
from coterie.engine.kernels.matmul import selected_outputs
from coterie.tensors.devices import working_bytes


def shared_losses(
    network: LinearLayers, models: Tensor, rows: Rows, count: Tensor | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The clients under shared models [k, d], a block of clients at a time.

    Gives which they are, the first layer's outputs [k, h, b, n] and the mean losses [b, k]. The
    mean is over `count` [m] samples if these are only some of them.
    """
    weight = rows.weights(models.dtype, count)
    for here, z, losses in shared_sample_losses(network, models, rows):
        yield here, z, (losses * weight[here]).sum(2).T


def shared_sample_losses(
    network: LinearLayers, models: Tensor, rows: Rows
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The clients under shared models [k, d], a block of clients at a time.

    Gives which they are, the first layer's outputs [k, h, b, n] and the losses of samples
    [k, b, n]: all rows of the block and all models are one long product.
    """
    first, bias, upper = network.split_first(models)
    k, h, n = len(models), first.shape[1], rows.y.shape[1]
    allowed = working_bytes(models.device, SHARED_OUTPUT_BYTES)
    block = max(1, allowed // (k * h * n * models.element_size()))
    for here, some in rows.client_blocks(block):
        samples, y = some.x.flatten(0, 1).flatten(1), some.y.flatten(0, 1)
        z = product(first.flatten(0, 1), samples.T).view(k, h, len(samples))
        if bias is not None:
            z += bias[:, :, None]
        output = network.upper_outputs(z, upper).mT  # [k, b n, c]
        losses = network.task.losses(output, y.expand(k, *y.shape)).view(k, -1, n)
        yield here, z.view(k, h, -1, n), losses


def selected_losses(
    network: LinearLayers,
    models: Tensor,
    index: Tensor,
    rows: Rows,
    clients: Tensor,
    count: Tensor,
    out: Tensor,
) -> Tensor:
    """Mean losses [c] of model `index[i]` on the rows of client `clients[i]`.

    The mean is over `count` [m] samples. The first layer's outputs [c, h, n] are put into `out`.
    """
    x = rows.x.flatten(2)
    first, bias, upper = network.split_first(models)
    allowed = working_bytes(models.device, SHARED_OUTPUT_BYTES)
    block = max(1, allowed // (out[0].numel() * out.element_size()))
    losses = []
    for j, i, z in zip(index.split(block), clients.split(block), out.split(block), strict=True):
        selected_outputs(first, bias, j, x, i, z)
        output = network.upper_outputs(z, [layer[j] for layer in upper]).mT
        mask = Rows(x, rows.y[i], rows.size[i]).weights(models.dtype, count[i])
        losses.append((network.task.losses(output, rows.y[i]) * mask).sum(1))
    return torch.cat(losses)


def compare_models(network: LinearLayers, models: Tensor, rows: Rows, out: Tensor) -> Tensor:
    """The best model [m] of each client, all seeing all samples.

    What its first layer makes of them is put into `out` [m, h, n].
    """
    index = torch.empty_like(rows.size)
    for here, z, losses in shared_losses(network, models, rows):
        index[here] = nan_to_inf(losses).argmin(1)
        out[here] = outputs_of_chosen(z, index[here])
    return index


def outputs_of_chosen(z: Tensor, index: Tensor) -> Tensor:
    """Outputs [b, h, n] under the model [b] that each client chose, out of all [k, h, b, n].

    With J models [b, J] of each client they are [b, J, h, n].
    """
    client = torch.arange(len(index), device=index.device)
    return z[index, :, client.view(-1, *(1 for _ in index.shape[1:]))]
