"""Counts, means and second moments: all that a Gaussian distribution needs to know of samples.

They only add, so that a distribution can be fitted exactly to samples that nobody sees together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.tensors.lazy import Lazy, subtract_origin

BLOCK = 4096  # samples whose products are added up at a time


class SecondMoments:
    """The mean of x x^T over the weighted samples of each client in each cluster, [m, k, f f].

    They are formed only when somebody looks at them: a sum over clients is one product per cluster,
    in the memory of k matrices, however many clients there are.
    """

    def __init__(self, points: list[Tensor], weights: list[Tensor]) -> None:
        self.points = points  # m of [n_i, f]
        self.weights = weights  # m of [n_i, k]
        k, features = weights[0].shape[1], points[0].shape[1]
        self.shape: tuple[int, ...] = len(points), k, features * features
        self.dtype, self.device = points[0].dtype, points[0].device

    def dense(self) -> Tensor:
        found = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        for own, x, w in zip(found, self.points, self.weights, strict=True):
            share = w.double() / w.double().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
            own += weighted_products(x, share).to(self.dtype)
        return found

    def add_to(self, sums: Tensor, member: Tensor, origin: Tensor | None = None) -> None:
        total = torch.stack([w.double().sum(0) for w in self.weights], 1)  # [k, m]
        factor = torch.where(total > 0, member / total, 0.0).T
        shares = [w.double() * own for w, own in zip(self.weights, factor, strict=True)]
        sums += weighted_products(torch.cat(self.points), torch.cat(shares))
        if origin is not None:
            subtract_origin(sums, member, origin)


def second_moments(points: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Those of m clients with samples [n_i, f] that have weights [n_i, k], not formed."""
    return Lazy(SecondMoments(points, weights))


def weighted_products(x: Tensor, weight: Tensor) -> Tensor:
    """The sums [k, f f] of w x x^T over samples x [n, f] with weights [n, k], in double precision.

    >>> weighted_products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]])).tolist()
    [[3.0, 6.0, 6.0, 12.0], [0.0, 0.0, 0.0, 0.0]]
    """
    features = x.shape[1]
    sums = torch.zeros(weight.shape[1], features, features, dtype=torch.float64, device=x.device)
    for j, total in enumerate(sums):
        here = torch.nonzero(weight[:, j]).flatten()
        for rows in here.split(BLOCK):
            some = x[rows].double()
            total.addmm_((some * weight[rows, j, None].double()).T, some)
    return sums.flatten(1)


def whitening(
    mean: Tensor, square: Tensor, shrinkage: float, floor: float
) -> tuple[Tensor, Tensor]:
    """A [k, f, f] and c [k, f] for which A x + c has mean 0 and covariance I in each cluster.

    From means [k, f] and second moments [k, f, f] of samples, in double precision. The covariance
    S is shrunk towards a sphere of the same size, (1 - shrinkage) S + shrinkage (tr S / f) I, and
    no variance is below `floor`, also where all samples of a cluster are equal.
    """
    covariance = square - mean[:, :, None] * mean[:, None]
    variance, axes = torch.linalg.eigh(covariance)
    size = variance.clamp_min(0).mean(1, keepdim=True)
    variance = (1 - shrinkage) * variance + shrinkage * size
    root = variance.clamp_min(floor).rsqrt()
    A = axes * root[:, None] @ axes.mT
    return A, -(A @ mean[:, :, None])[:, :, 0]
