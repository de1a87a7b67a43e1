"""The gradients of flows written out, for many flows at once.

What automatic differentiation finds, to rounding, by a shorter way: nothing is recorded, the
log-determinants themselves are not computed, and no gradient is led back to samples. Flows have
tensors [m, ...], samples [m, n, ...] and weights [m, n]; what is differentiated is, for each flow,

    L = sum_i w_i (-log p(x_i))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.networks.couplings import LARGEST_LOG_SCALE, PartCoupling, join, put_parts
from coterie.networks.flows import RealNvpModule
from coterie.tensors.activations import relu_gradient
from coterie.tensors.products import SummedProducts

LAYERS = (0, 2, 4)  # of a coupling's perceptron that have weights; ReLUs are between them


def linear_flow_gradients(tensors: dict[str, Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
    """The derivatives by A and c.

    With z_i = A u_i + c they are sum_i w_i z_i u_i^T - sum_i w_i A^-T and sum_i w_i z_i.
    """
    with torch.no_grad():
        A, c, shift = (tensors[name] for name in ("A", "c", "inputs.shift"))
        u = (x.flatten(2) - shift[:, None]) / tensors["inputs.scale"][:, None, None]
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

    inputs: list[Tensor]  # [m, n, h] of each layer: the parts that are seen, and two hidden ones
    before: Tensor  # [m, n, c] x
    bend: Tensor  # [m, n, c] s as a share of its bound: the tanh
    factor: Tensor  # [m, n, c] exp(s)


def real_nvp_gradients(
    module: RealNvpModule, tensors: dict[str, Tensor], x: Tensor, weight: Tensor
) -> list[Tensor | SummedProducts]:
    """The derivatives by the weights and biases of the couplings, in their order.

    With z = f(x) it is L = sum_i w_i (|z_i|^2 / 2 - the sum of all s) and a constant. So L falls
    by w_i with each s, and the slope of y is that which the later couplings give it:

        dL/dt = dL/dy      dL/ds = dL/dy x exp(s) - w_i      dL/dx = dL/dy exp(s)
    """
    couplings: list[PartCoupling] = [*module.couplings]
    with torch.no_grad():
        parts = scaled_parts(module, tensors, x)
        weights = [layers_of_coupling(tensors, c) for c in range(len(couplings))]
        traces: list[CouplingTrace] = []
        for coupling, own in zip(couplings, weights, strict=True):
            parts, trace = apply_coupling(coupling, own, parts)
            traces.append(trace)
        # The slopes of a part that no earlier coupling has changed lead to samples alone.
        wanted = [
            {j for before in couplings[:c] for j in before.changed} for c in range(len(couplings))
        ]
        each = weight[:, :, None]
        slopes, of_scale = [part * each for part in parts], -each
        found: list[Tensor | SummedProducts] = []
        for coupling, own, at, needed in reversed(
            [*zip(couplings, weights, traces, wanted, strict=True)]
        ):
            to_net, to_before = coupling_slopes(at, join(slopes, coupling.changed), of_scale)
            slopes = put_parts(slopes, coupling.changed, to_before)
            gradients, to_seen = perceptron_gradients(
                own, at.inputs, to_net, backwards=not needed.isdisjoint(coupling.seen)
            )
            found[:0] = gradients
            if to_seen is not None:
                total = to_seen.add_(join(slopes, coupling.seen))
                slopes = put_parts(slopes, coupling.seen, total)
        return found


def scaled_parts(module: RealNvpModule, tensors: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """The parts [m, n, f_j] of centred and scaled samples, in the order of the couplings."""
    m, n = x.shape[:2]
    inputs: nn.Module = module.inputs
    plain: Tensor = inputs.unscaled(x.flatten(0, 1))  # type: ignore[operator]
    order = module.order.to(x.device)  # the module is that of the task, which is on the CPU
    centred = plain.view(m, n, -1) - tensors["inputs.shift"][:, None]
    return module.split(centred.div_(tensors["inputs.scale"][:, None, None]).index_select(2, order))


def layers_of_coupling(tensors: dict[str, Tensor], c: int) -> list[tuple[Tensor, Tensor]]:
    """The weights [m, out, in] and biases [m, out] of each layer of coupling c."""
    names = [f"couplings.{c}.net.{layer}" for layer in LAYERS]
    return [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]


def apply_coupling(
    coupling: PartCoupling, weights: list[tuple[Tensor, Tensor]], parts: list[Tensor]
) -> tuple[list[Tensor], CouplingTrace]:
    """What a coupling makes of the parts of samples, and what it saw and made for that."""
    inputs, value = [], join(parts, coupling.seen)
    for layer, (weight, bias) in enumerate(weights):
        inputs.append(value)
        value = torch.baddbmm(bias[:, None], value, weight.mT)
        if layer < len(weights) - 1:
            value.clamp_min_(0)
    s, t = value.chunk(2, 2)
    bend = (s / LARGEST_LOG_SCALE).tanh_()
    factor = (bend * LARGEST_LOG_SCALE).exp_()
    before = join(parts, coupling.changed)
    after = put_parts(parts, coupling.changed, torch.addcmul(t, before, factor))
    return after, CouplingTrace(inputs, before, bend, factor)


def coupling_slopes(at: CouplingTrace, slope: Tensor, of_scale: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes by what its perceptron gave, [m, n, 2 c], and by what was changed, [m, n, c].

    `of_scale` [m, n, 1] is that of each s by itself, -w_i.
    """
    to_before = slope * at.factor
    to_scale = torch.addcmul(of_scale, to_before, at.before)
    # The derivative of a tanh is 1 less its square; the bound goes in and out.
    to_scale = torch.addcmul(to_scale, to_scale, at.bend.square(), value=-1)
    return torch.cat([to_scale, slope], 2), to_before


def perceptron_gradients(
    weights: list[tuple[Tensor, Tensor]], inputs: list[Tensor], slope: Tensor, *, backwards: bool
) -> tuple[list[Tensor | SummedProducts], Tensor | None]:
    """The derivatives by weights and biases, and if asked by what the perceptron saw."""
    found: list[Tensor | SummedProducts] = []
    for layer, ((weight, _), value) in reversed([*enumerate(zip(weights, inputs, strict=True))]):
        found[:0] = [SummedProducts(slope, value), slope.sum(1)]
        if layer:
            slope = relu_gradient(torch.bmm(slope, weight), value)
        elif backwards:
            return found, torch.bmm(slope, weight)
    return found, None
