"""CFL: clusters that split in two when their clients no longer agree.

F. Sattler, K.-R. Mueller, W. Samek: Clustered Federated Learning: Model-Agnostic Distributed
Multitask Optimization Under Privacy Constraints, IEEE TNNLS 2021,
https://arxiv.org/abs/1910.01991. With weight updates and several local steps:

    one cluster c of all clients with a random model w_c
    for t = 0, ..., T - 1:
        server:   send w_c to the clients i of each cluster c
        client i: dW_i = LocalUpdate(w_c) - w_c
        server:   for each cluster c:
            dW_c = mean of dW_i over c;  w_c = w_c + dW_c
            if |dW_c| < eps1 and max |dW_i| > eps2:                  c is at rest, its clients not
                alpha_ij = cosine of dW_i and dW_j
                c1, c2 = two groups with little alpha_ij across
                if sqrt((1 - max alpha_ij across) / 2) > gamma:      split c into c1 and c2

Differences from the paper
- eps1 and eps2 are fractions of the largest norms in the first `wait` rounds, freed of the decay of
  the step size; `thresholds=absolute` takes them as they are, as the paper does.
- A split must also have a `contrast`: groups that differ by no more than clients of one kind do are
  left together. The paper relies on eps2 for that, which one value does for no two federations.
- The paper's two groups have the least largest similarity across (`linkage=single`); the authors'
  code agglomerates by complete linkage, which is the default. Also from the code: no split in the
  first `wait` rounds or of fewer than `members` clients.
- A child begins at the mean of its own clients, as in the code, not at that of all of c.
- Clients may be absent. The larger child keeps the number of c and the clients of c that were not
  there; when one of these comes back, it joins the child with the lowest loss on its data.
- A client that never trained takes the model with the lowest loss; the paper walks it down the tree
  of splits by the similarity of its updates, for which the server keeps all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.algorithms.steps import Choice, ask_cluster
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, merge_answers, on_client
from coterie.core.cohort import Cohort
from coterie.core.fields import Cluster, Size, Update
from coterie.core.local_training import LocalTraining, weighting_setting
from coterie.core.settings import setting
from coterie.core.validate import above, at_least, one_of
from coterie.vectors.bipartition import LINKAGES, bipartition, contrast, cosines


class State(NamedTuple):
    models: Tensor  # [k, d] w_c; k grows
    cluster: Tensor  # [m] c(i)
    maybe: Tensor  # [m, k] the clusters i may be in: c(i), and others if it missed their split
    scale: Tensor  # [2] the largest |dW_c| and |dW_i| of the first rounds


class Upload(NamedTuple):
    cluster: Cluster  # [m] c(i)
    update: Update  # [m, d] dW_i
    size: Size  # [m] samples n_i


@dataclass(frozen=True, kw_only=True)
class CFL(LocalTraining):
    """A cluster that is at rest while its clients still pull apart is split in two."""

    traits: ClassVar[Traits] = Traits(models="models", averages=False)

    eps1: float = setting(0.5, "a cluster rests if its mean update is shorter than this", above(0))
    eps2: float = setting(0.3, "its clients disagree if an update is longer than this", at_least(0))
    thresholds: str = setting(
        "fractions",
        "what eps1 and eps2 are; fractions: of the first norms",
        one_of("fractions", "absolute"),
    )
    gamma: float = setting(
        0.0, "split only if sqrt((1 - largest similarity across) / 2) is above this", at_least(0)
    )
    contrast: float = setting(
        4.0, "split only if groups differ so much more than their members; 0: always", at_least(0)
    )
    wait: int = setting(10, "rounds before the first split; eps1, eps2 refer to them", at_least(1))
    members: int = setting(3, "clients of a cluster that must answer for a split", at_least(2))
    linkage: str = setting(
        "complete", "how groups are made; the paper's is single", one_of(*LINKAGES)
    )
    weighting: str = weighting_setting()

    def init(self, start: Start) -> State:
        together = torch.zeros(start.clients, dtype=torch.long)
        models = start.models(1)
        return State(models, together, together[:, None] == 0, models.new_zeros(2))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        k = len(state.models)
        ids, up = self._answers(state, clients)
        if up is None:
            return state, Info(ids, state.cluster[ids], k)
        cluster, mean = up.cluster, self._means(up, up.cluster, k)
        trained = clients.task.layout.trained_size  # buffers do not say what a client wants
        norms = self._norms(up.update[:, :trained], mean[:, :trained], cluster, clients.round)
        parent, scale = list(range(k)), state.scale
        if clients.round < self.wait or not bool(scale.any()):
            scale = torch.maximum(scale, norms.amax(0))
        else:
            for c in self._clusters_to_split(norms, scale, cluster):
                here = torch.nonzero(cluster == c).flatten()  # places among `ids`, not clients
                alpha = cosines(up.update[here, :trained])
                leaves, across = bipartition(alpha, self.linkage)
                apart = contrast(alpha, leaves) > self.contrast
                if apart and sqrt((1 - across) / 2) > self.gamma:
                    cluster = cluster.index_fill(0, here[leaves], len(parent))
                    parent.append(c)
            mean = mean if len(parent) == k else self._means(up, cluster, len(parent))
        after = State(
            models=state.models[parent] + mean,
            cluster=state.cluster.index_put((ids,), cluster),
            # Who was not there may be in the new cluster as well as in the one it came from.
            maybe=state.maybe[:, parent].index_put((ids,), one_hot(cluster, len(parent)).bool()),
            scale=scale,
        )
        return after, Info(ids, cluster, len(parent))

    def serve(self, state: State, clients: Clients) -> Serving:
        ids, m = clients.ids, clients.population
        unseen = max(0, int(ids.max()) + 1 - m) if len(ids) else 0  # numbered behind the others
        maybe = torch.cat([state.maybe, state.maybe.new_ones(unseen, len(state.models))])
        cluster = torch.cat([state.cluster, state.cluster.new_zeros(unseen)])
        unsure = maybe[ids].sum(1) > 1
        if bool(unsure.any()):
            some = clients.only(ids[unsure])
            chosen = ask_cluster(self.choose, some, models=state.models, maybe=Each(maybe))
            cluster = cluster.index_fill(0, some.ids, -1).index_put((chosen[0],), chosen[1])
        served = ids[cluster[ids] >= 0]  # who is unsure and did not answer is not
        return Serving(state.models, served, cluster[served])

    @on_client
    def train(self, cohort: Cohort, model: Tensor, cluster: Tensor) -> Upload:
        return Upload(cluster, self.local_update(cohort, model) - model, cohort.size)

    @on_client
    def rejoin(self, cohort: Cohort, models: Tensor, maybe: Tensor) -> Upload:
        cluster = self.choose(cohort, models, maybe).cluster
        return self.train(cohort, models[cluster], cluster)

    @on_client
    def choose(self, cohort: Cohort, models: Tensor, maybe: Tensor) -> Choice:
        loss = cohort.loss(models)
        # A diverged model has infinite loss, but is still before one that is out of the question.
        loss = loss.clamp_max(torch.finfo(loss.dtype).max).masked_fill(~maybe, torch.inf)
        return Choice(loss.argmin(-1))

    def _answers(self, state: State, clients: Clients) -> tuple[Tensor, Upload | None]:
        """Who answered, in order of id, and what; None if nobody did."""
        sure = state.maybe.sum(1)[clients.ids] == 1
        own, index = Each(state.models, state.cluster), Each(state.cluster)
        return merge_answers(
            clients.only(clients.ids[sure]).run(self.train, model=own, cluster=index),
            clients.only(clients.ids[~sure]).run(
                self.rejoin, models=state.models, maybe=Each(state.maybe)
            ),
        )

    def _means(self, up: Upload, cluster: Tensor, k: int) -> Tensor:
        """The mean update of each cluster [k, d]; that of an empty one is 0."""
        weight = up.size if self.weighting == "size" else torch.ones_like(up.size)
        member = (one_hot(cluster, k) * weight[:, None]).T.to(up.update.dtype)  # [k, a]
        return member / member.sum(1, keepdim=True).clamp_min(1) @ up.update

    def _norms(self, update: Tensor, mean: Tensor, cluster: Tensor, round: int) -> Tensor:
        """|dW_c| and the largest |dW_i| of each cluster, [k, 2]."""
        norm = update.norm(dim=1)
        largest = norm.new_zeros(len(mean)).scatter_reduce(0, cluster, norm, "amax")
        norms = torch.stack([mean.norm(dim=1), largest], 1)
        factor = self.rate_factor(round)
        return norms / factor if self.thresholds == "fractions" and factor else norms

    def _clusters_to_split(self, norms: Tensor, scale: Tensor, cluster: Tensor) -> list[int]:
        """The clusters that are at rest while their clients are not."""
        low, high = norms.unbind(1)
        eps = torch.tensor([self.eps1, self.eps2], dtype=norms.dtype)
        eps1, eps2 = eps * scale if self.thresholds == "fractions" else eps
        enough = torch.bincount(cluster, minlength=len(norms)) >= self.members
        return torch.nonzero((low < eps1) & (high > eps2) & enough).flatten().tolist()
