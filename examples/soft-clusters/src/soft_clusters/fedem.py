"""FedEM: federated learning under a mixture of distributions.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated Multi-Task Learning under a Mixture
of Distributions, NeurIPS 2021, https://arxiv.org/abs/2108.10252. Every client's data come from k
distributions, in shares of its own. Algorithm 1, with the letters of the paper:

    for each round:
        server:   broadcast theta_1, ..., theta_k
        client t: q_i(j) proportional to pi_t(j) exp(-loss(theta_j; sample i))       E-step
                  pi_t(j) = mean of q_i(j) over its samples                          M-step
                  theta_t,j = LocalUpdate(theta_j), sample i counting q_i(j)         M-step
        server:   theta_j = mean of theta_t,j over the clients, weighted by n_t

A client is served the mixture of the k models with its shares pi_t.

Differences from the paper
- The shares are not kept from round to round: a client finds them by `iterations` E- and M-steps
  from equal shares, at the models it was sent. So newcomers are served as all others are.
- theta_j is weighted by n_t pi_t(j), the samples that belong to it, and not by n_t: a client that
  has nothing of a component does not hold it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.extend import (
    Clients,
    Cohort,
    Info,
    LocalTraining,
    Model,
    Serving,
    Start,
    Statistic,
    Traits,
    WeightedRows,
    at_least,
    on_client,
    setting,
)


class State(NamedTuple):
    models: Tensor  # [k, d] theta


class Upload(NamedTuple):
    models: Model  # [m, k, d] theta_t,j after local training
    weight: Statistic  # [m, k] n_t pi_t(j)


class Shares(NamedTuple):
    shares: Statistic  # [m, k] pi_t


@dataclass(frozen=True, kw_only=True)
class FedEM(LocalTraining):
    """Clients train all k models, with samples weighted by how much they belong to each."""

    k: int = setting(2, "components of the mixture", at_least(1))
    iterations: int = setting(20, "E- and M-steps that find a client's shares", at_least(1))

    traits: ClassVar[Traits] = Traits(clusters="k", soft=True)

    def init(self, start: Start) -> State:
        return State(start.models(self.k))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = WeightedRows(self.k, "weight", {"models": "models"})
        ids, up = clients.run(self.train, fold=fold, models=state.models)
        return State(up.mean("models")), Info(ids, None, self.k, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        ids, up = clients.run(self.mix, models=state.models)
        shares = up.shares if len(ids) else state.models.new_zeros(0, self.k)
        return Serving(state.models, ids, shares.argmax(1), mixture=shares)

    @on_client(fold=WeightedRows)
    def train(self, cohort: Cohort, models: Tensor) -> Upload:
        belongs, shares = self._expectation(cohort, models)
        start = models.expand(len(cohort), *models.shape)
        trained = self.local_update(cohort, start, weights=belongs)
        return Upload(trained, cohort.size[:, None] * shares)

    @on_client
    def mix(self, cohort: Cohort, models: Tensor) -> Shares:
        return Shares(self._expectation(cohort, models)[1])

    def _expectation(self, cohort: Cohort, models: Tensor) -> tuple[Tensor, Tensor]:
        """How much each sample belongs to each model [m, n, k], and the shares [m, k]."""
        losses, counts = cohort.losses(models), cohort.mask[:, :, None]
        shares = losses.new_full((len(cohort), 1, self.k), 1 / self.k)
        for _ in range(self.iterations):
            belongs = torch.softmax(shares.log() - losses, 2) * counts
            shares = belongs.sum(1, keepdim=True) / cohort.size[:, None, None]
        return belongs, shares[:, 0]
