"""Error bounds: choices that cannot have changed since they were last made.

The root of a client's mean squared error is a distance. Under a linear model it moves at most
`lipschitz` times as far as the model does: the largest singular value of the client's samples over
the root of their number. So the errors of one round bound those of the next, and while the model
that a client chose is ahead by these bounds, nothing need be known of the others. C. Elkan (Using
the Triangle Inequality to Accelerate k-Means, ICML 2003) saves distances of k-means like this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.rows import Rows
from coterie.engine.kernels.blocks import SHARED_OUTPUT_BYTES
from coterie.tensors.devices import working_bytes

MARGIN = 1.001  # a lead that is smaller may be a matter of rounding
SQUARINGS = 4  # that bound a largest eigenvalue; 100 equal ones then look 16 % larger
# To bound what a model's move can do costs as much as so many rounds, at most, in which all models
# are compared.
ROUNDS = 8


class ErrorBounds:
    """What is known of the errors of J copies' k models, for each client of a population.

    Bounds move whenever models do. So that only those are touched that are looked at, they are kept
    as they were when the models had not moved at all, and `path` says how far those have come.
    """

    def __init__(self, population: int) -> None:
        self.lipschitz = torch.full((population,), torch.nan, dtype=torch.float64)  # [M]
        self.models = torch.empty(0, 0, 0)  # [J, k, d] when they were last looked at
        self.path = torch.empty(0, 0)  # [J, k] how far they have come
        self.best = torch.empty(0, 0)  # [M, J] the model that was last chosen
        self.error = torch.empty(0, 0)  # [M, J] its root mean squared error is this or less
        self.floor = torch.empty(0, 0, 0)  # [M, J, k] the models' errors are this or more

    @staticmethod
    def are_cheap(models: Tensor, rows: Rows) -> bool:
        """Whether they cost little besides the comparison of models [J, k, d] in some rounds."""
        narrow = min(rows.y.shape[1], rows.x[0, 0].numel())
        return bool(narrow <= ROUNDS * models.shape[0] * models.shape[1])

    def update(self, models: Tensor, ids: Tensor, rows: Rows, bias: bool) -> None:
        """Take note of where models [J, k, d] have gone, and of clients that are new."""
        if self.models.shape != models.shape:
            self.lipschitz = self.lipschitz.to(models.device)
            self.path = torch.zeros_like(models[:, :, 0], dtype=torch.float64)
            self.floor = self.path.new_full((len(self.lipschitz), *self.path.shape), -torch.inf)
            self.error = -self.floor[:, :, 0]
            self.best = torch.zeros_like(self.error, dtype=torch.long)
        else:
            self.path += (models - self.models).double().norm(dim=2)
        self.models = models
        if self.lipschitz[ids].isnan().any():
            self.lipschitz[ids] = lipschitz_constants(rows, bias)

    def unchanged(self, ids: Tensor) -> Tensor:
        """Whether clients are certain to choose the same model of each copy again, [m, J]."""
        best, drift = self.best[ids][:, :, None], self._drift(ids)
        error = self.error[ids] + drift.gather(2, best)[:, :, 0]
        floor = (self.floor[ids] - drift).scatter(2, best, torch.inf).amin(2)
        return floor > MARGIN * error  # not so if a model has diverged

    def keep_losses(self, ids: Tensor, copies: Tensor, losses: Tensor) -> None:
        """Keep the losses [m, c, k] of all models of some copies [c]."""
        self.floor[ids[:, None], copies] = losses.double().sqrt() + self._drift(ids)[:, copies]

    def keep_choice(self, ids: Tensor, best: Tensor, losses: Tensor) -> None:
        """Keep which models clients chose [m, J], and their losses."""
        drift = self._drift(ids).gather(2, best[:, :, None])[:, :, 0]
        self.best[ids], self.error[ids] = best, losses.double().sqrt() - drift

    def _drift(self, ids: Tensor) -> Tensor:
        """How much errors may have changed since the models had not moved at all, [m, J, k]."""
        return self.lipschitz[ids][:, None, None] * self.path


def lipschitz_constants(rows: Rows, bias: bool) -> Tensor:
    """How many times as far as a linear model its root mean squared error may move, [m]."""
    n, width = rows.y.shape[1], rows.x[0, 0].numel() + bias
    narrow = min(n, width)
    needed = max(n * width, narrow**2) * rows.x.element_size()
    found = []
    block = max(1, working_bytes(rows.x.device, SHARED_OUTPUT_BYTES) // needed)
    for _, part in rows.client_blocks(block):
        x = part.x.flatten(2) * part.mask[:, :, None]
        if bias:
            x = torch.cat([x, part.mask[:, :, None].to(x.dtype)], 2)
        gram = torch.bmm(x, x.mT) if narrow == n else torch.bmm(x.mT, x)
        found.append((bound_largest_eigenvalue(gram) / part.size).sqrt())
    return torch.cat(found)


def bound_largest_eigenvalue(symmetric: Tensor) -> Tensor:
    """At least the largest eigenvalue [m] of matrices [m, n, n] that have none below zero.

    The norm of a matrix bounds it, that of its square its square, and so on, ever closer.
    """
    log = torch.zeros(len(symmetric), dtype=torch.float64, device=symmetric.device)
    for squarings in range(SQUARINGS + 1):
        if squarings:
            symmetric = symmetric @ symmetric
        norm = symmetric.flatten(1).norm(dim=1).clamp_min(torch.finfo(symmetric.dtype).tiny)
        log += norm.double().log() / 2**squarings
        symmetric = symmetric / norm[:, None, None]
    return MARGIN * log.exp()
