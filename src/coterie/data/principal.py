"""Principal components of the samples of all clients, from sums that clients make.

No sample leaves a client. It says how many it has, their sum and the sum of their outer products,
[d, d]; these are added up, and the leading eigenvectors of the covariance that follows are the
directions on which every client then projects its own samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class SampleSums(NamedTuple):
    """What a client says of its samples, or what all clients say together."""

    size: int  # how many
    total: Tensor  # [d] their sum
    products: Tensor  # [d, d] the sum of their outer products


class Components(NamedTuple):
    """Directions in which samples differ most, the first of all most."""

    mean: Tensor  # [d]
    directions: Tensor  # [d, features] of length 1, at right angles
    deviation: Tensor  # [features] of the samples along each, divided by the count

    def project(self, samples: Tensor, *, whiten: bool = False) -> Tensor:
        """Samples [n, d] along the directions, [n, features] float32, about a mean of 0.

        They are divided by one number, so that the mean variance over all clients is 1. With
        `whiten` the variance along each direction is 1; one in which nothing differs stays 0.
        """
        along = (samples.to(self.mean.dtype) - self.mean) @ self.directions
        scale = self.deviation if whiten else self.deviation.square().mean().sqrt()
        found = torch.where(scale > 0, along / scale.clamp_min(torch.finfo(scale.dtype).tiny), 0.0)
        return found.float()


def sum_samples(samples: Tensor) -> SampleSums:
    """The sums of one client's samples [n, d], in double precision."""
    x = samples.double()
    return SampleSums(len(x), x.sum(0), x.T @ x)


def add_sums(clients: Iterable[SampleSums]) -> SampleSums:
    """The sums of all clients' samples; one client after another, so that none has to be kept."""
    each = iter(clients)
    size, total, products = next(each)
    for other in each:
        size, total, products = (
            size + other.size,
            total + other.total,
            products + other.products,
        )
    return SampleSums(size, total, products)


def leading_components(sums: SampleSums, features: int) -> Components:
    """The `features` leading components of all samples that were added up.

    The largest number of a direction is positive, so that its sign is no matter of chance.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 2.0], [1.0, 1.0], [1.0, 1.0]])
    >>> found = leading_components(add_sums([sum_samples(x[:1]), sum_samples(x[1:])]), 1)
    >>> found.mean.tolist(), (found.directions.T / 0.5**0.5).round().tolist()
    ([1.0, 1.0], [[1.0, 1.0]])
    >>> found.deviation.tolist()
    [1.0]
    """
    mean = sums.total / sums.size
    covariance = sums.products / sums.size - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance)  # smallest first
    values, vectors = values.flip(0)[:features], vectors.flip(1)[:, :features]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    # What is smaller than the rounding of samples in single precision is no variance.
    rounding = torch.finfo(torch.float32).eps ** 2 * sums.products.trace() / sums.size
    deviation = torch.where(values > rounding, values, 0.0).sqrt()
    return Components(mean, vectors * largest.sign(), deviation)
