"""HypCluster: hypothesis-based clustering.

Y. Mansour, M. Mohri, J. Ro, A. T. Suresh: Three Approaches for Personalization with Applications to
Federated Learning, 2020, https://arxiv.org/abs/2002.10619, the approach by user clustering. Over q
hypotheses h_1, ..., h_q it minimises the sum of m_k min_i L_k(h_i) over the clients k, with m_k the
number of samples of client k and L_k its mean loss:

    for t = 1, ..., T:
        server:   send h_1, ..., h_q to the participating clients P
        client k: f(k) = argmin_i L_k(h_i), on its training data
                  w_k = LocalUpdate(h_f(k))
        server:   h_i = mean of w_k over the clients with f(k) = i, weighted by m_k

It was found at the same time as IFCA. The objective differs: in IFCA every client counts the same,
here every sample. `IFCA(weighting="size")` makes the same rounds, and has what only its paper has:
gradient averaging, shared trunks, stable identities.

Differences from the paper
- The paper's few steps of SGD on the joint data of a cluster are local steps and a mean, as FedAvg
  does them.
- Where the q hypotheses begin is a start policy, as for IFCA; the default is `farthest`.
- A hypothesis that nobody chose stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor

from coterie import starts
from coterie.algorithms import steps
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Model, Size
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients
from coterie.starts import StartSettings
from coterie.vectors.folds import ByCluster


class State(NamedTuple):
    models: Tensor  # [k, d] hypotheses h_i


class Upload(NamedTuple):
    cluster: Cluster  # [m] f(k)
    model: Model  # [m, d] w_k
    size: Size  # [m] samples m_k


@dataclass(frozen=True, kw_only=True)
class HypCluster(StartSettings, LocalTraining):
    """Clients choose the hypothesis with the lowest loss and train it; every sample counts."""

    traits: ClassVar[Traits] = Traits(
        clusters="k", models="models", withholds=True, made_of={"hypcluster": ("k",)}
    )

    k: int = setting(2, "clusters", at_least(1))

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        trial = starts.Trial(
            k=self.k,
            start=start,
            draw=start.models,
            losses=partial(steps.ask_losses, self.losses),
            advance=self._advance,
            teach=self._advance,
            fits=partial(steps.ask_models, self.train_alone, self.k),
        )
        return State(starts.begin_models(self.start, trial, self.tries, self.start_rounds))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        fold = ByCluster(self.k, {"model": "models"}, by_size=True)
        ids, up = clients.run(self.train, fold=fold, models=state.models)
        return State(up.mean("model")), Info(ids, up.cluster, self.k, weights=up.weights)

    def serve(self, state: State, clients: Clients) -> Serving:
        return steps.serve_by_choice(self.choose, state.models, clients, models=state.models)

    choose, losses, train_alone = steps.choose, steps.losses, steps.train_alone

    @on_client(fold=ByCluster)
    def train(self, cohort: Cohort, models: Tensor) -> Upload:
        chosen = cohort.choose(models)
        return Upload(chosen.cluster, self.local_update(cohort, chosen.model), cohort.size)

    def _advance(self, models: Tensor, clients: Clients) -> Tensor:
        """The models after a round before the first."""
        state, _ = replace(self, k=len(models)).round(State(models), clients)
        return state.models
