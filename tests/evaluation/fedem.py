"""FedEM, as somebody outside might write it: every client uses a mixture of all models.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated Multi-Task Learning under a Mixture
of Distributions, NeurIPS 2021.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Traits
from coterie.core.clients import on_client
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least


class State(NamedTuple):
    models: Tensor  # [k, d]


class Upload(NamedTuple):
    shares: Tensor  # [m, k]
    own: Tensor  # [m, k, d]
    size: Tensor  # [m]


class Shares(NamedTuple):
    shares: Tensor  # [m, k]


@dataclass(frozen=True, kw_only=True)
class FedEM(LocalTraining):
    """Each sample has come from one of k models, each client has a share of each."""

    traits: ClassVar[Traits] = Traits(clusters="k", soft=True)

    k: int = setting(2, "models", at_least(1))

    def init(self, start):
        return State(start.models(self.k))

    def round(self, state, clients):
        ids, up = clients.run(self.train, models=state.models)
        if not len(ids):
            return state, Info(ids, ids, self.k)
        weight = up.size[:, None] * up.shares + 1e-9
        models = (weight[..., None] * up.own).sum(0) / weight.sum(0)[:, None]
        entropy = -torch.xlogy(up.shares, up.shares).sum(1).mean()
        info = Info(ids, up.shares.argmax(1), self.k, {"entropy": entropy, "heard": len(ids)})
        return State(models), info

    def serve(self, state, clients):
        ids, up = clients.run(self.estimate, models=state.models)
        shares = up.shares if len(ids) else torch.zeros(0, self.k)
        return Serving(state.models, ids, None, mixture=shares)

    @on_client
    def train(self, cohort, models: Tensor) -> Upload:
        uniform = models.new_full((len(cohort), self.k), 1 / self.k)
        weights = responsibilities(cohort, models, cohort.recall("shares", uniform))
        shares = weights.sum(1) / cohort.size[:, None]
        cohort.keep("shares", shares)
        start = models.expand(len(cohort), -1, -1)
        own = cohort.descend(start, lr=self.lr, steps=self.steps, weights=weights)
        return Upload(shares, own, cohort.size)

    @on_client
    def estimate(self, cohort, models: Tensor) -> Shares:
        shares = models.new_full((len(cohort), self.k), 1 / self.k)
        for _ in range(5):
            shares = responsibilities(cohort, models, shares).sum(1) / cohort.size[:, None]
        return Shares(shares)


def responsibilities(cohort, models, shares):
    """How likely each sample came from each model, [m, n, k]; 0 for padding."""
    likely = torch.softmax(shares.log()[:, None] - cohort.losses(models), -1)
    return likely * cohort.mask[:, :, None]
