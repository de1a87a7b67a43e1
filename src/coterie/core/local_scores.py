"""How well models do on the samples of some clients: losses, choices and scores, without training.

A client without samples has infinite mean losses, no losses of samples, the first of all models,
and scores of 0: a kernel is only asked about clients that have some.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.cohort_rows import CohortRows
from coterie.core.kernel import Kernel
from coterie.core.rows import nan_to_inf
from coterie.tensors.lazy import select_rows


class BestModel(NamedTuple):
    """The model with the lowest loss on each client's data."""

    cluster: Tensor  # [m] which of the models it is, the first of equals
    model: Tensor  # [m, d] the model itself


class LocalScores(NamedTuple):
    """Some clients, and how the work on them is done."""

    on: CohortRows
    kernel: Kernel

    def subset(self, places: Tensor) -> LocalScores:
        """The clients at `places` [a] among these."""
        return self._replace(on=self.on.subset(places))

    def loss(self, models: Tensor) -> Tensor:
        """Mean losses [m, k] of models [k, d], or of each client's own [m, k, d]."""
        here = self.on.with_data
        if here is None:
            return nan_to_inf(self.kernel.losses(models, self.on.rows))
        losses = models.new_full((len(self.on.ids), models.shape[-2]), torch.inf)
        if len(here):
            own = models if models.dim() == 2 else models[here]
            losses[here] = self.subset(here).loss(own)
        return losses

    def losses(self, models: Tensor) -> Tensor:
        """The losses [m, n, k] of all samples, 0 for padding."""
        here, mask = self.on.with_data, self.on.rows.mask
        if here is None:
            losses = nan_to_inf(self.kernel.sample_losses(models, self.on.rows))
            return torch.where(mask[:, :, None], losses, 0.0)
        losses = models.new_zeros(*mask.shape, models.shape[-2])
        if len(here):
            own = models if models.dim() == 2 else models[here]
            losses[here] = self.subset(here).losses(own)
        return losses

    def choose(self, models: Tensor) -> BestModel:
        """The model of [k, d] with the lowest mean loss of each client."""
        here = self.on.with_data
        if here is None:
            return BestModel(*self.kernel.choose(models, self.on.rows))
        cluster = torch.zeros_like(self.on.rows.size)
        if len(here):
            cluster[here] = self.subset(here).choose(models).cluster
        return BestModel(cluster, select_rows(models, cluster))

    def score(self, model: Tensor) -> Tensor:
        """The task's sums [m, s] under models [m, d]."""
        here, rows = self.on.with_data, self.on.rows
        if here is None:
            return self.kernel.score(model, rows)
        if len(here):
            found = self.subset(here).score(model[here])
            return found.new_zeros(len(model), found.shape[1]).index_copy(0, here, found)
        # A row of padding shows how many sums there are.
        one = next(rows for _, rows in rows.row_range(0, 1).client_blocks(1))
        found = self.kernel.score(model[:1], one._replace(size=torch.ones_like(one.size)))
        return torch.zeros_like(found).repeat(len(model), 1)

    def score_mixture(self, models: Tensor, shares: Tensor) -> Tensor:
        """The task's sums [m, s] of mixtures of models [k, d] in shares [m, k]."""
        here = self.on.with_data
        if here is None:
            return self.kernel.score_mixture(models, self.on.rows, shares)
        found = torch.zeros_like(self.score(models[:1].expand(len(shares), -1)))
        if len(here):
            found[here] = self.subset(here).score_mixture(models, shares[here])
        return found
