"""The gradients of flows written out, for many flows at once.

What automatic differentiation finds, to rounding, by a shorter way: nothing is recorded, the
log-determinants themselves are not computed, and no gradient is led back to samples. Flows have
tensors [m, ...], samples [m, n, ...] and weights [m, n]; what is differentiated is, for each flow,

    L = sum_i w_i (-log p(x_i))

Samples are scaled beforehand, once for all steps (`scaled_samples`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.networks.couplings import (
    STEEPNESS,
    PartCoupling,
    bend_of,
    join,
    log_scale_of,
    put_parts,
)
from coterie.networks.flows import RealNvpModule
from coterie.tensors.activations import relu_gradient, sigmoid_gradient
from coterie.tensors.products import SummedProducts

LAYERS = (0, 2, 4)  # of a coupling's perceptron that have weights; ReLUs are between them


def scaled_samples(module: Any, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the gradients take of samples: centred and scaled numbers [m, n, f].

    Those of RealNVP are in the order of its couplings.
    """
    m, n = x.shape[:2]
    with torch.no_grad():
        plain: Tensor = module.inputs.unscaled(x.flatten(0, 1)).view(m, n, -1)
        centred = plain - tensors["inputs.shift"][:, None]
        scaled = centred.div_(tensors["inputs.scale"][:, None, None])
        if not isinstance(module, RealNvpModule):
            return scaled
        order = module.order.to(x.device)  # the module is that of the task, which is on the CPU
        in_order = torch.equal(order, torch.arange(len(order), device=x.device))
        return scaled if in_order else scaled.index_select(2, order)


def linear_flow_gradients(tensors: dict[str, Tensor], u: Tensor, weight: Tensor) -> list[Tensor]:
    """The derivatives by A and c.

    With z_i = A u_i + c they are sum_i w_i z_i u_i^T - sum_i w_i A^-T and sum_i w_i z_i.
    """
    with torch.no_grad():
        A, c = tensors["A"], tensors["c"]
        weighted = torch.baddbmm(c[:, None], u, A.mT) * weight[:, :, None]
        # Not `inv`, which stops at the first matrix that has none: only its flow is lost.
        inverse, info = torch.linalg.inv_ex(A)
        inverse[info > 0] = torch.nan
        total = weight.sum(1)[:, None, None]
        return [torch.baddbmm(inverse.mT * total, weighted.mT, u, beta=-1), weighted.sum(1)]


def is_real_nvp_of_perceptrons(module: nn.Module) -> bool:
    """Whether `real_nvp_gradients` are those of this network."""
    return type(module) is RealNvpModule and all(
        type(coupling) is PartCoupling for coupling in module.couplings
    )


class CouplingTrace(NamedTuple):
    """What a coupling y = x exp(s) + t saw and made, for the way back."""

    inputs: list[Tensor]  # [m, h, n] of each layer: the parts that are seen, and two hidden ones
    before: Tensor  # [m, c, n] x
    bend: Tensor  # [m, c, n] where s is between its bounds, 0 to 1
    factor: Tensor  # [m, c, n] exp(s)


def real_nvp_gradients(
    module: RealNvpModule, tensors: dict[str, Tensor], u: Tensor, weight: Tensor
) -> list[Tensor | SummedProducts]:
    """The derivatives by the weights and biases of the couplings, in their order.

    With z = f(x) it is L = sum_i w_i (|z_i|^2 / 2 - the sum of all s) and a constant. So L falls
    by w_i with each s, and the slope of y is that which the later couplings give it:

        dL/dt = dL/dy      dL/ds = dL/dy x exp(s) - w_i      dL/dx = dL/dy exp(s)

    Samples are columns here, [m, f, n]: parts of them, and s and t, are then blocks of memory, and
    products are faster.
    """
    couplings: list[PartCoupling] = [*module.couplings]
    with torch.no_grad():
        parts = module.split(u.mT.contiguous(), 1)
        weights = [layers_of_coupling(tensors, c) for c in range(len(couplings))]
        traces: list[CouplingTrace] = []
        for coupling, own in zip(couplings, weights, strict=True):
            parts, trace = apply_coupling(coupling, own, parts)
            traces.append(trace)
        # The slopes of a part that no earlier coupling has changed lead to samples alone.
        wanted = [
            {j for before in couplings[:c] for j in before.changed} for c in range(len(couplings))
        ]
        each = weight[:, None]
        slopes = [part * each for part in parts]
        found: list[Tensor | SummedProducts] = []
        for coupling, own, at, needed in reversed(
            [*zip(couplings, weights, traces, wanted, strict=True)]
        ):
            to_net, to_before = coupling_slopes(at, join(slopes, coupling.changed, 1), each)
            slopes = put_parts(slopes, coupling.changed, to_before, 1)
            gradients, to_seen = perceptron_gradients(
                own, at.inputs, to_net, backwards=not needed.isdisjoint(coupling.seen)
            )
            found[:0] = gradients
            if to_seen is not None:
                total = to_seen.add_(join(slopes, coupling.seen, 1))
                slopes = put_parts(slopes, coupling.seen, total, 1)
        return found


def layers_of_coupling(tensors: dict[str, Tensor], c: int) -> list[tuple[Tensor, Tensor]]:
    """The weights [m, out, in] and biases [m, out] of each layer of coupling c."""
    names = [f"couplings.{c}.net.{layer}" for layer in LAYERS]
    return [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]


def apply_coupling(
    coupling: PartCoupling, weights: list[tuple[Tensor, Tensor]], parts: list[Tensor]
) -> tuple[list[Tensor], CouplingTrace]:
    """What a coupling makes of the parts of samples, and what it saw and made for that."""
    inputs, value = [], join(parts, coupling.seen, 1)
    for layer, (weight, bias) in enumerate(weights):
        inputs.append(value)
        value = torch.baddbmm(bias[:, :, None], weight, value)
        if layer < len(weights) - 1:
            value.clamp_min_(0)
    s, t = value.chunk(2, 1)
    bend = bend_of(s)
    factor = log_scale_of(bend).exp_()
    before = join(parts, coupling.changed, 1)
    after = put_parts(parts, coupling.changed, torch.addcmul(t, before, factor), 1)
    return after, CouplingTrace(inputs, before, bend, factor)


def coupling_slopes(at: CouplingTrace, slope: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes by what its perceptron gave, [m, 2 c, n], and by what was changed, [m, c, n].

    `weight` [m, 1, n] is w_i.
    """
    m, c, n = slope.shape
    to_before, to_net = slope * at.factor, slope.new_empty(m, 2 * c, n)
    # The slope of a log-scale by what the perceptron gave is 4 bend (1 - bend).
    to_scale = torch.addcmul(-STEEPNESS * weight, to_before, at.before, value=STEEPNESS)
    sigmoid_gradient(to_scale, at.bend, out=to_net[:, :c])
    to_net[:, c:] = slope
    return to_net, to_before


def perceptron_gradients(
    weights: list[tuple[Tensor, Tensor]], inputs: list[Tensor], slope: Tensor, *, backwards: bool
) -> tuple[list[Tensor | SummedProducts], Tensor | None]:
    """The derivatives by weights and biases, and if asked by what the perceptron saw."""
    found: list[Tensor | SummedProducts] = []
    for layer, ((weight, _), value) in reversed([*enumerate(zip(weights, inputs, strict=True))]):
        found[:0] = [SummedProducts(slope.mT, value.mT), slope.sum(2)]
        if layer:
            slope = relu_gradient(torch.bmm(weight.mT, slope), value)
        elif backwards:
            return found, torch.bmm(weight.mT, slope)
    return found, None
