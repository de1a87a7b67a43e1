"""Per-FedAvg: a common start from which a step of its own takes each client a long way.

A. Fallah, A. Mokhtari, A. Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020, https://arxiv.org/abs/2002.07948. Algorithm 1
in its first-order form, Per-FedAvg (FO):

    for k = 0, ..., K - 1:
        server:   send w to the participating clients A_k
        client i: w_i = w; then tau times, on fresh batches D and D':
                      w~  = w_i - alpha gradient of f_i at w_i on D
                      w_i = w_i - beta gradient of f_i at w~ on D'
        server:   w = mean of w_i over A_k

A client is served w after one such step of size alpha on its own data.

Differences from the paper
- The factor I - alpha Hessian in front of the second gradient is left out, as in the paper's FO
  form; the Hessian-free form HF, which estimates it from two more gradients, is not here.
- A client adapts with the gradient of all its samples, and may make more than one step before it is
  served (`adapt_steps`); training always looks one step ahead, as in the paper.
- By default a gradient is that of all samples (`batch=0`), so that D and D' are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import GradientSettings, weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import above, at_least
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    model: Tensor  # [d] w


class Upload(NamedTuple):
    cluster: Cluster  # [m] always 0: there is one common start
    model: Model  # [m, d] w_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(GradientSettings):
    """Clients train one model for what it becomes after a step on their own data."""

    steps: int = setting(10, "local meta-steps tau, with the step size beta", at_least(1))
    adapt_lr: float = setting(0.1, "step size alpha of the adaptation, also when served", above(0))
    adapt_steps: int = setting(1, "steps of adaptation by a client that is served", at_least(0))
    weighting: str = weighting_setting()

    traits: ClassVar[Traits] = Traits(withholds=True)

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(1, {"model": "model"}, by_size=self.weighting == "size")
        ids, up = clients.run(self.train, fold=fold, model=state.model)
        model = up.pooled_mean("model")
        return State(model), Info(ids, ids, clients.population)

    def serve(self, state: State, clients: Clients) -> Serving:
        models = state.model.expand(len(clients.ids), -1)
        return Serving(models, clients.ids, torch.arange(len(clients.ids)), adapt=self.adapt)

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        model = model.expand(len(cohort), -1)
        for _ in range(self.steps):
            model = self._meta_step(cohort, model)
        return Upload(torch.zeros_like(cohort.ids), model, cohort.size)

    @on_client
    def adapt(self, cohort: Cohort, model: Tensor) -> Tensor:
        if self.adapt_steps == 0:
            return model
        return cohort.descend(
            model,
            lr=self.adapt_lr,
            steps=self.adapt_steps,
            weight_decay=self.weight_decay,
            clip=self.clip,
        )

    def _meta_step(self, cohort: Cohort, model: Tensor) -> Tensor:
        """Each client's w_i [m, d] moved by the gradient at w~, which is w_i adapted."""
        adapted = self._step(cohort, model, self.adapt_lr)
        beyond = self._step(cohort, adapted, self.rate(cohort.round))
        # Only what is trained has a gradient; running statistics are those of the last batch.
        layout = cohort.task.layout
        trained = torch.arange(layout.size) < layout.trained_size
        return torch.where(trained, model + (beyond - adapted), beyond)

    def _step(self, cohort: Cohort, model: Tensor, lr: float) -> Tensor:
        """One gradient step of each client on a batch of its own."""
        return cohort.descend(
            model,
            lr=lr,
            steps=1,
            batch=self.batch,
            weight_decay=self.weight_decay,
            clip=self.clip,
        )
