"""Gradient descent on the weights themselves, of a block of clients at once."""

from __future__ import annotations

from torch import Tensor

from coterie.core.cohort import Descent, Rows
from coterie.engine.kernels.linear_layers import LinearLayers
from coterie.engine.kernels.minibatches import MiniBatches, zero_if_finished
from coterie.engine.kernels.objective import ObjectiveTerms


def descend_weights(
    network: LinearLayers, start: list[Tensor], rows: Rows, descent: Descent
) -> list[Tensor]:
    """Where clients' own weights, tensor by tensor, end."""
    layout = network.task.layout
    equal = len(set(descent.steps)) == 1
    weight, batches = (
        rows.weights(layout.dtype),
        MiniBatches.of(descent, layout.dtype, rows.y.device),
    )
    x, y = rows.x, rows.y
    weights = [piece.clone() for piece in start]
    terms = ObjectiveTerms(layout, descent)
    for step in range(max(descent.steps)):
        if batches is not None:
            weight = batches.weight[:, step]
            x, y, _ = rows.take(batches.place[:, step])
        if terms.is_empty and equal:
            plain_step(network, weights, x, y, weight, descent.lr)
            continue
        gradients = network.gradients(weights, x, y, weight)
        for name, piece, gradient in zip(layout.names, weights, gradients, strict=True):
            gradient = terms.add_to_gradient(name, gradient, piece)
            if not equal:
                gradient = zero_if_finished(gradient, descent.steps, step)
            piece.sub_(gradient, alpha=descent.lr)
    return weights


def plain_step(
    network: LinearLayers, weights: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, lr: float
) -> None:
    """A gradient step on the losses alone, in place; the first layer's gradient is not formed."""
    slopes, others = network.output_gradients(weights, x, y, weight)
    weights[0].baddbmm_(slopes, x.flatten(2), alpha=-lr)
    for piece, gradient in zip(weights[1:], others, strict=True):
        piece.sub_(gradient, alpha=lr)
