"""k-FED: one-shot clustering of samples.

D. K. Dennis, T. Li, V. Smith: Heterogeneity for the Win: One-Shot Federated Clustering, ICML 2021,
https://arxiv.org/abs/2103.00697. A^z are the samples of device z, one in each row:

    device z: A^ = projection of A^z on its k' leading right singular vectors
              nu_1, ..., nu_k' = centres of k-means on A^
              S_r = {i: 3 |A^_i - nu_r| <= |A^_i - nu_s| for every other s}
              theta_1, ..., theta_k' = Lloyd on A^z from the means of its rows in S_1, ..., S_k'
              send theta^z
    server:   M = the centres of one device
              until |M| = k: add to M the centre that is farthest from it
              tau_1, ..., tau_k = all centres, each with the nearest of M;  mu_j = mean of tau_j
    device z: a sample is in cluster j if its nearest theta_r is in tau_j

Differences from the paper
- The paper has k' given, different centres of a device being of different clusters. Here k' is k
  unless it is set, so that a device may cut a cluster into pieces. The server therefore begins with
  one centre; `server=device` begins with all of one device's, as in the paper.
- `server=k-means` runs k-means on the centres until it rests: the k-FED of the UIFCA paper.
- n <= k' samples are sent as they are. An empty S_r leaves nu_r itself, a centre without samples is
  not sent.
- Clients that come in later rounds are added; a client that never came clusters its samples by
  itself and gives each of its centres the cluster of the nearest of M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.algorithms.steps import Choice, ask_cluster
from coterie.core import seeds
from coterie.core.algorithm import WITHOUT_LABELS, Info, Serving, Start, Traits
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.fields import Statistic
from coterie.core.settings import Settings, setting
from coterie.core.task import Task
from coterie.core.validate import at_least, one_of
from coterie.data.federation import Federation
from coterie.tasks.centre import Centre, count_features
from coterie.vectors.kmeans import (
    canonical_order,
    centroids,
    kmeans,
    lloyd,
    nearest_centre,
    squared_distances,
)


class State(NamedTuple):
    centres: Tensor  # [m, k', d] theta: what each client sent
    number: Tensor  # [m] how many centres that is; 0 for a client that never answered
    chosen: Tensor  # [k, d] M: a centre is in the cluster of the nearest of them
    mu: Tensor  # [k, d] the mean of the centres in each cluster; like M it is 0 at first
    seed: Tensor  # [] where all draws begin


class Upload(NamedTuple):
    centres: Statistic  # [m, k', d] theta, that with the most samples first
    number: Statistic  # [m] how many centres there are: at most k'


@dataclass(frozen=True, kw_only=True)
class KFed(Settings):
    """Clients cluster their samples and send the centres, which the server clusters once."""

    k: int = setting(2, "clusters", at_least(1))
    k_local: int = setting(0, "clusters k' that a client looks for; 0: as many as k", at_least(0))
    server: str = setting(
        "farthest",
        "how centres are clustered; the paper's is device",
        one_of("farthest", "device", "k-means"),
    )
    tries: int = setting(10, "starts of k-means, of which the best is kept", at_least(1))

    traits: ClassVar[Traits] = Traits(clusters="k", by_sample=True)
    suggests: ClassVar[dict[str, Any]] = dict(rounds=1, fraction=1.0, **WITHOUT_LABELS)

    def task(self, default: Task, federation: Federation) -> Task:
        """Centres of samples, in the precision that a network would have had."""
        if isinstance(default, Centre):
            return default
        features, dtype = count_features(federation.train.x), default.layout.dtype
        return Centre(features, scale=federation.scale, dtype=dtype)

    def init(self, start: Start) -> State:
        layout = start.task.layout
        if layout.names != ["centre"]:
            raise SettingError(
                f"KFed finds centres of samples: its task must be Centre, "
                f"got {type(start.task).__name__}"
            )
        centres = torch.zeros(start.clients, self._k_local, layout.size, dtype=layout.dtype)
        nothing = centres.new_zeros(self.k, layout.size)
        seed = torch.tensor(seeds.derive(start.seed, "k-fed"))
        number = torch.zeros(start.clients, dtype=torch.long)
        return State(centres, number, nothing, nothing, seed)

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        ids, up = clients.run(self.cluster, seed=state.seed)
        if len(ids) == 0:
            return state, Info(ids, ids, self.k)
        centres = state.centres.index_copy(0, ids, up.centres)
        number = state.number.index_copy(0, ids, up.number)
        chosen, mu = self.cluster_centres(centres, number, int(state.seed))
        after = State(centres, number, chosen, mu, state.seed)
        return after, Info(ids, nearest_centre(up.centres[:, 0], chosen), self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        sent = {"chosen": state.chosen, "seed": state.seed}
        label = partial(self.label, chosen=state.chosen, seed=state.seed)
        return Serving(state.mu, *ask_cluster(self.choose, clients, **sent), label=label)

    @on_client
    def cluster(self, cohort: Cohort, seed: Tensor) -> Upload:
        up = self._find_centres(cohort, seed)
        cohort.keep("centres", up.centres)
        cohort.keep("number", up.number)
        return up

    @on_client
    def choose(self, cohort: Cohort, chosen: Tensor, seed: Tensor) -> Choice:
        return Choice(nearest_centre(self._own(cohort, seed).centres[:, 0], chosen))

    @on_client
    def label(self, cohort: Cohort, models: Tensor, chosen: Tensor, seed: Tensor) -> Tensor:
        own = self._own(cohort, seed)
        labels = []
        for (x, _), centres, number in zip(cohort, own.centres, own.number.tolist(), strict=True):
            theta = centres[:number]
            labels.append(nearest_centre(theta, chosen)[nearest_centre(x.flatten(1), theta)])
        return pad_sequence(labels, batch_first=True)

    @property
    def _k_local(self) -> int:
        """Centres of a client at most, k'."""
        return self.k_local or self.k

    def _own(self, cohort: Cohort, seed: Tensor) -> Upload:
        """The centres that clients kept, or find now if they never took part."""
        if bool(cohort.remembers("centres").all()):
            return Upload(cohort.recall("centres"), cohort.recall("number"))
        now = self._find_centres(cohort, seed)
        return Upload(cohort.recall("centres", now.centres), cohort.recall("number", now.number))

    def _find_centres(self, cohort: Cohort, seed: Tensor) -> Upload:
        """The device's side of the method, client by client."""
        points = [x.flatten(1) for x, _ in cohort]
        return find_centres(points, self._k_local, int(seed), self.tries)

    def cluster_centres(self, centres: Tensor, number: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """The server's side: from the centres [m, k', d] that are there, M and mu."""
        points = centres[torch.arange(self._k_local) < number[:, None]]  # [c, d]
        if self.server == "k-means" and len(points) >= self.k:
            mu = kmeans(points, self.k, seed, tries=self.tries).centres
            return mu, mu
        known = torch.nonzero(number).flatten()
        z = known[canonical_order(centres[known, 0], seed)[0]]  # any of them
        first = min(int(number[z]), self.k) if self.server == "device" else 1
        chosen = add_farthest(points, centres[z, :first], self.k)
        return chosen, centroids(points, nearest_centre(points, chosen), empty=chosen)


def find_centres(points: Sequence[Tensor], k: int, seed: int, tries: int) -> Upload:
    """The centres of each client's points [n, d], at most k; a client without points has none.

    Points that are not finite, as the codes of a network that has diverged, belong nowhere.
    """
    centres = points[0].new_zeros(len(points), k, points[0].shape[1])
    number = []
    for row, every in zip(centres, points, strict=True):
        own = every[every.isfinite().all(1)]
        theta = local_centres(own, k, seed, tries)
        if len(theta):
            size = torch.bincount(nearest_centre(own, theta), minlength=len(theta))
            order = size.argsort(descending=True, stable=True)
            theta = theta[order[: int((size > 0).sum())]]
        row[: len(theta)] = theta
        number.append(len(theta))
    return Upload(centres, torch.tensor(number))


def local_centres(points: Tensor, k: int, seed: int, tries: int) -> Tensor:
    """Centres [k, d] of points [n, d] as a device finds them; the points if there are no more."""
    if len(points) <= k:
        return points
    right = torch.linalg.svd(points, full_matrices=False).Vh[:k]  # [k, d]
    projected = points @ right.T
    nu = kmeans(projected, k, seed, tries=tries).centres
    apart = squared_distances(projected, nu).sqrt()  # [n, k]
    best, r = apart.min(1)
    clear = 3 * best <= apart.scatter(1, r[:, None], torch.inf).amin(1)
    return lloyd(points, centroids(points[clear], r[clear], empty=nu @ right)).centres


def add_farthest(points: Tensor, begun: Tensor, k: int) -> Tensor:
    """`begun` [b, d] and, until they are k, the point that is farthest from all of them.

    >>> line = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    >>> add_farthest(line, line[1:2], 3).flatten().tolist()
    [1.0, 9.0, 4.0]
    """
    while len(begun) < k:
        apart = squared_distances(points, begun).amin(1)
        begun = torch.cat([begun, points[apart.argmax()][None]])
    return begun
