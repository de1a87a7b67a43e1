"""FeSEM-MA: FeSEM that matches hidden units before models are compared and averaged.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, sections 2.3
and 3.6, where it is FeSEM with the matched averaging of H. Wang, M. Yurochkin, Y. Sun,
D. Papailiopoulos, Y. Khazaeni: Federated Learning with Matched Averaging, ICLR 2020,
https://arxiv.org/abs/2002.06440.

    start:        W_i = LocalUpdate(W), one random model W for all
                  W~_1, ..., W~_K = the tightest of 20 clusterings of the P W_i, P matching W_i to W
    for t = 0, ..., T - 1:
        client i: W_i = LocalUpdate(W~_k), k the cluster of i
        E step:   the cluster of i is argmin_k min_P |P W_i - W~_k|
        M step:   W~_k = mean of P W_i over the clients of cluster k, P matching W_i to W~_k

P permutes the hidden units of every layer, each with its incoming weights, bias and outgoing
weights; the least distance is found by the Hungarian algorithm (vectors/matching.py).

Differences from the thesis
- Layers keep their width: units are matched by a permutation. The thesis refers to PFNM (M.
  Yurochkin et al., ICML 2019), whose layers grow by units that match none, and to the paper above,
  which matches layer after layer with retraining. Neither is here.
- Clients that begin at one common model have little to match. `begin=permuted` lets each begin with
  its own order of the hidden units of it, `begin=own` with a random model of its own: for
  experiments. `match=False` is then FeSEM.
- Distances are over all parameters. The rest is as in FeSEM: only those that answer are clustered,
  a client without a cluster takes the centre with the lowest loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import steps
from coterie.algorithms.first_centres import Fit, clustered_part, trained_models
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Model, Size
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.core.settings import setting
from coterie.core.task import Task
from coterie.core.validate import at_least, at_most_clients, one_of
from coterie.starts import PANEL
from coterie.vectors.folds import ByCluster, NearestCentre
from coterie.vectors.kmeans import kmeans, squared_distances
from coterie.vectors.matching import hidden_layers, match_units, shuffle_units


class State(NamedTuple):
    models: Tensor  # [k, d] centres W~
    cluster: Tensor  # [m] the cluster of each client, -1 if unknown


class Upload(NamedTuple):
    model: Model  # [m, d] W_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class FeSEMMA(LocalTraining):
    """FeSEM whose server matches hidden units before it compares models and averages them."""

    k: int = setting(2, "clusters K", at_least(1))
    match: bool = setting(True, "whether hidden units are matched; False: FeSEM")
    begin: str = setting(
        "common",
        "what clients begin with; permuted: the common model, hidden units in an order of their "
        "own, own: a random model of their own",
        one_of("common", "permuted", "own"),
    )
    tries: int = setting(20, "clusterings at the start, of which the tightest is kept", at_least(1))
    weighting: str = weighting_setting()

    @property
    def traits(self) -> Traits:
        draw = self.begin != "common"
        return Traits(clusters="k", models="models", clients_draw=draw, averages=False)

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        model = start.models(1)[0]
        hidden_layers(start.task.module, start.task.layout)  # refuses what it cannot match
        clients = start.sample(0, at_least=PANEL * self.k)
        ids, w = trained_models(self.fit, clients, self.k, model=model)
        matched = self.matched(start.task, w, model[None])
        clustered = clustered_part(start.task.layout, "all")
        found = kmeans(clustered.parts(matched)[0], self.k, start.seed, tries=self.tries)
        cluster = torch.full((start.clients,), -1).index_put((ids,), found.cluster)
        return State(clustered.whole(found.centres, clustered.parts(model)[1]), cluster)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        sent = {"model": Each(state.models, cluster)}
        ids, up = clients.run(self.train, model=sent["model"])
        if not len(ids):
            return state, Info(ids, ids, self.k)
        clustered = clustered_part(clients.task.layout, "all")
        expectation = NearestCentre("model", clustered.parts(state.models)[0], clustered.part)
        up = Upload(self.matched(clients.task, up.model, state.models), up.size)
        by_size = self.weighting == "size"
        fold = ByCluster(self.k, {"model": "model"}, by_size=by_size, assign=expectation)
        means = fold.finish(fold.add(fold.start(), ids, up, sent), sent)
        assert means.cluster is not None  # the server assigns them
        after = State(means.mean("model"), state.cluster.index_put((ids,), means.cluster))
        return after, Info(ids, means.cluster, self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    choose = steps.choose

    @on_client(origins={"model": "model"})
    def fit(self, cohort: Cohort, model: Tensor) -> Fit:
        return Fit(self.local_update(cohort, self._begun(cohort, model)), cohort.size)

    @on_client(origins={"model": "model"})
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(self.local_update(cohort, model), cohort.size)

    def matched(self, task: Task, models: Tensor, centres: Tensor) -> Tensor:
        """Models [a, d], each with its units matched to that of centres [k, d] it is nearest to."""
        layers = hidden_layers(task.module, task.layout) if self.match else []
        trained = task.layout.trained_size
        best, least = models, torch.full((len(models),), torch.inf, dtype=torch.float64)
        for centre in centres if layers else []:
            here = match_units(layers, models, centre)
            apart = squared_distances(here[:, :trained], centre[None, :trained])[:, 0]
            closer = apart < least
            best, least = torch.where(closer[:, None], here, best), torch.minimum(apart, least)
        return best

    def _begun(self, cohort: Cohort, model: Tensor) -> Tensor:
        """The model [m, d] that each client begins with, the server having sent it one [d]."""
        task, draws = cohort.task, cohort.generators("begin")
        if self.begin == "own":
            return torch.stack([task.draw(each).to(model) for each in draws])
        if self.begin == "common":
            return model.expand(len(cohort), -1)
        layers = hidden_layers(task.module, task.layout)
        return torch.stack([shuffle_units(layers, model, each) for each in draws])
