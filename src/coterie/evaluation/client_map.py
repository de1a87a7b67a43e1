"""The client map: a point in the plane for each client, near to those of clients that are alike.

Clients are compared by their losses under all models, or, where there is one model or there are
very many, by their gradients at one model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import Serving
from coterie.core.cohort import Cohort

MOST_MODELS = 64  # with more models than this, clients are compared by their gradients
BLOCK_ROWS = 4096  # rows converted to double precision at a time
SKETCH = 64  # dimensions of a projected gradient


def compares_losses(serving: Serving) -> bool:
    """Whether clients are compared by their losses; else they are by their gradients."""
    return serving.adapt is None and 1 < len(serving.models) <= MOST_MODELS


def losses_or_gradients(cohort: Cohort, models: Tensor, seed: int, by_loss: bool) -> Tensor:
    """What clients are compared by: losses [m, k] under the models, or gradients at the first."""
    if by_loss:
        return cohort.loss(models)
    gradient = cohort.gradient(models[:1].expand(len(cohort), -1), statistics=False)
    return count_sketch(gradient, seed)


def place_in_plane(rows: Tensor, by_loss: bool) -> tuple[str, Tensor]:
    """What a map is drawn from, and points [m, 2] from losses or gradients [m, s]."""
    k = rows.shape[1]
    if by_loss and k > 2:
        return f"losses under the {k} models", radial_coordinates(rows.double())
    what = "losses under the 2 models" if by_loss else "gradients at one model"
    return what, principal_components(rows)


def count_sketch(rows: Tensor, seed: int) -> Tensor:
    """Rows [m, d] projected to 64 dimensions, distances roughly preserved.

    Coordinates are added up in random groups with random signs (Charikar, Chen and Farach-Colton,
    2002), so that the projection itself takes no more memory than one row.
    """
    generator = seeds.generator(seed, "sketch")
    group = torch.randint(SKETCH, (rows.shape[1],), generator=generator, device="cpu")
    sign = torch.randint(2, (rows.shape[1],), generator=generator, device="cpu")
    group, sign = group.to(rows.device), sign.to(rows) * 2 - 1
    return rows.new_zeros(len(rows), SKETCH).index_add_(1, group, rows * sign)


def radial_coordinates(losses: Tensor) -> Tensor:
    """Points [m, 2] between models on a circle, nearer to the models under which losses are low.

    A projection of losses [m, k] would put four clusters that are equally far apart on top of each
    other.
    """
    worse = losses.nan_to_num(nan=torch.inf) - losses.amin(1, keepdim=True)  # [m, k]
    typical = worse.sort(1).values[:, 1].median().clamp_min(1e-12)  # of the second best
    weight = torch.softmax(-worse / typical, 1)
    angle = 2 * torch.pi * torch.arange(losses.shape[1]).double() / losses.shape[1]
    return weight @ torch.stack([angle.cos(), angle.sin()], 1)


def principal_components(rows: Tensor) -> Tensor:
    """The two leading principal components of rows [m, s], [m, 2], in double precision."""
    rows = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    centre = rows.mean(0, dtype=torch.float64)
    # Some rows at a time, so that there is never a copy of all of them in double precision.
    blocks = [slice(begin, begin + BLOCK_ROWS) for begin in range(0, len(rows), BLOCK_ROWS)]
    scatter = sum((rows[block] - centre).T @ (rows[block] - centre) for block in blocks)
    axes = torch.linalg.eigh(scatter).eigenvectors.flip(1)[:, :2]  # the largest is last
    # The sign of a component is arbitrary: let its largest coefficient be positive.
    largest = axes.abs().argmax(0, keepdim=True)
    axes = axes * axes.gather(0, largest).sign()
    points = torch.cat([(rows[block] - centre) @ axes for block in blocks])
    zeros = points.new_zeros(len(points), 2 - points.shape[1])  # where rows have one component only
    return torch.cat([points, zeros], 1)
