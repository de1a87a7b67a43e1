"""Pairwise fusion: how the models of m devices are drawn together in pairs.

A penalty on |omega_i - omega_j| is split off by theta_ij = omega_i - omega_j with multipliers v_ij.
An update of a pair, with delta_ij = omega_i - omega_j + v_ij / rho, is

    theta_ij = s delta_ij
    v_ij = v_ij + rho (omega_i - omega_j - theta_ij) = rho (1 - s) delta_ij

where the number s in 0 to 1 depends on |delta_ij| alone. So one vector and one number are all that
a pair i < j has to keep (theta_ji = -theta_ij, v_ji = -v_ij). A pair with s = 1 has parted, and its
v is 0. If it had parted before, theta_ij = omega_i - omega_j, and it need not keep anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

# What the vectors of a block of pairs may occupy, so that they stay in the cache.
BLOCK_BYTES = 2 * 2**20

Shrink = Callable[[Tensor], Tensor]  # |delta| -> s


def scad_scale(norm: Tensor, *, lam: float, a: float, rho: float, xi: float) -> Tensor:
    """s for the SCAD penalty, made quadratic below xi: theta = s delta minimises
    P(|theta|) + rho/2 |theta - delta|^2; `norm` is |delta|, and a > 1 + 1/rho.

    >>> scad_scale(torch.tensor([0.0, 1.5, 9.0]), lam=1.0, a=3.7, rho=1.0, xi=1e-3).tolist()[2]
    1.0
    """
    at_least_tiny = norm.clamp_min(torch.finfo(norm.dtype).tiny)
    quadratic = torch.full_like(norm, xi * rho / (lam + xi * rho))
    linear = 1 - lam / (rho * at_least_tiny)
    bent = (1 - a * lam / ((a - 1) * rho * at_least_tiny)).clamp_min(0) / (1 - 1 / ((a - 1) * rho))
    s = torch.where(norm <= a * lam, bent, torch.ones_like(norm))
    s = torch.where(norm <= lam + lam / rho, linear, s)
    return torch.where(norm <= xi + lam / rho, quadratic, s)


def l1_scale(norm: Tensor, *, lam: float, rho: float) -> Tensor:
    """s for the penalty lam |theta|: a soft threshold of the whole vector at lam / rho.

    >>> l1_scale(torch.tensor([1.0, 4.0]), lam=2.0, rho=1.0).tolist()
    [0.0, 0.5]
    """
    return (1 - lam / (rho * norm.clamp_min(torch.finfo(norm.dtype).tiny))).clamp_min(0)


class Pairs(NamedTuple):
    """The pairs i < j that keep something, as of their last update; q <= m (m - 1) / 2."""

    pair: Tensor  # [q] which pair it is, i m + j
    delta: Tensor  # [q, p] delta_ij
    norm: Tensor  # [q] |delta_ij|
    scale: Tensor  # [q] s


def all_pairs(omega: Tensor) -> Pairs:
    """All pairs of m devices [m, p], with theta = v = 0."""
    m, p = omega.shape
    i, j = torch.triu_indices(m, m, offset=1)
    nothing = omega.new_zeros(len(i))
    return Pairs(i * m + j, omega.new_zeros(len(i), p), nothing, nothing)


def active_pairs(m: int, ids: Tensor, *, both: bool) -> Tensor:
    """The pairs [m, m] that a round updates: those with a device in `ids`, or with both in it."""
    chosen = torch.zeros(m, dtype=torch.bool)
    chosen[ids] = True
    return chosen[:, None] & chosen if both else chosen[:, None] | chosen


def update_pairs(
    pairs: Pairs, omega: Tensor, active: Tensor, shrink: Shrink, *, forget: bool
) -> tuple[Pairs, Tensor]:
    """Update the pairs that `active` [m, m] names, for devices at omega [m, p].

    Gives the pairs, and zeta_i, the mean over j of omega_j + theta_ij - v_ij / rho [m, p]. With
    `forget`, a pair that has parted again is no longer kept; this is exact if every pair is active
    as soon as one of its devices has moved.
    """
    m, p = omega.shape
    every = m * (m - 1) // 2
    kept = torch.zeros(m * m, dtype=torch.bool)
    kept[pairs.pair] = True
    active = active.flatten()
    back = pairs.pair[:0]
    if len(pairs.pair) < every:
        # Parted pairs whose devices have come near each other keep something again.
        near = shrink(torch.cdist(omega, omega).flatten()) < 1
        back = torch.nonzero((near & active & ~kept).view(m, m).triu(1).flatten()).flatten()
        kept[back] = True
    index = torch.cat([pairs.pair, back])
    norm = torch.cat([pairs.norm, omega.new_zeros(len(back))])
    scale = torch.cat([pairs.scale, omega.new_ones(len(back))])
    after = Pairs(index, omega.new_empty(len(index), p), norm, scale)
    sums, stays = omega.new_zeros(m, p), torch.ones(len(index), dtype=torch.bool)
    block = max(1, BLOCK_BYTES // (p * omega.element_size()))
    for begin in range(0, len(index), block):
        here = slice(begin, begin + block)
        some = Pairs(*(part[here] for part in after))
        stays[here] = update_block(some, pairs.delta[here], omega, active, shrink, sums)
    if len(index) < every:
        sums += parted_sums(omega, ~kept)
    zeta = omega.mean(0) + sums / m
    if forget and not bool(stays.all()):
        delta = compact_rows(after.delta, stays, block)
        after = Pairs(index[stays], delta, norm[stays], scale[stays])
    return after, zeta


def update_block(
    pairs: Pairs, before: Tensor, omega: Tensor, active: Tensor, shrink: Shrink, sums: Tensor
) -> Tensor:
    """Update some pairs in place, from their deltas `before`, and add what draws devices to `sums`.

    Pairs behind the last of `before` kept nothing. Gives which of the pairs [q] go on to keep
    something: all but those that have parted again.
    """
    m = len(omega)
    i, j, delta, s = pairs.pair // m, pairs.pair % m, pairs.delta, pairs.scale
    delta[: len(before)] = before
    delta[len(before) :] = 0
    stays = torch.ones(len(i), dtype=torch.bool)
    now = torch.nonzero(active[pairs.pair]).flatten()
    if len(now):
        old = s[now]
        fresh = omega[i[now]].sub_(omega[j[now]]).addcmul_(delta[now], (1 - old)[:, None])
        delta[now] = fresh
        pairs.norm[now] = length = torch.linalg.vector_norm(fresh, dim=1)
        s[now] = shrink(length)
        stays[now] = (old != 1) | (s[now] != 1)
    drawn = (2 * s - 1)[:, None] * delta
    sums.index_add_(0, i, drawn)
    sums.index_add_(0, j, drawn, alpha=-1)
    return stays


def parted_sums(omega: Tensor, parted: Tensor) -> Tensor:
    """The sum of omega_i - omega_j over the j that parted from i, [m, p]; `parted` is [m m]."""
    far = parted.view(len(omega), len(omega)).triu(1)
    far = (far | far.mT).to(omega.dtype)
    return far.sum(1, keepdim=True) * omega - far @ omega


def compact_rows(rows: Tensor, stays: Tensor, block: int) -> Tensor:
    """The rows [q, p] that stay [q], moved to the front block by block, without a second copy."""
    places = torch.nonzero(stays).flatten()
    for begin in range(0, len(places), block):
        some = places[begin : begin + block]
        rows[begin : begin + len(some)] = rows[some]
    return rows[: len(places)]


def connected_clusters(pairs: Pairs, omega: Tensor, nu: float) -> Tensor:
    """The cluster of each device [m]: devices with |theta_ij| <= nu are in one, and so on along
    chains. Clusters are numbered in the order of their first devices."""
    m = len(omega)
    gap = torch.cdist(omega, omega).flatten()
    gap[pairs.pair] = pairs.scale * pairs.norm
    joined = (gap.view(m, m) <= nu).triu(1)
    cluster = connected_components(csr_matrix(joined.numpy()), directed=False)[1]
    return torch.from_numpy(cluster.astype("int64"))


def cluster_means(omega: Tensor, cluster: Tensor, size: Tensor) -> Tensor:
    """The mean of omega [m, p] in each cluster [k, p], weighted by the sizes [m].

    Devices of size 0, of which nothing is known, count only where there are no others.

    >>> omega = torch.tensor([[1.0], [4.0], [7.0], [9.0]])
    >>> cluster, size = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 0, 0])
    >>> cluster_means(omega, cluster, size).flatten().tolist()
    [3.0, 8.0]
    """
    member = (cluster == torch.arange(int(cluster.max()) + 1)[:, None]).double()
    weight = member * size
    weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, member)
    return ((weight @ omega.double()) / weight.sum(1, keepdim=True)).to(omega.dtype)
