"""FedRoC: FeSEM whose centres are those of one block of clients, the one with the median risk.

M. Xie: Multi-Center Federated Learning, thesis, University of Technology Sydney, 2022, chapter 4,
"Robust clustered federated learning with bootstrap median-of-means". Algorithm 3, with the letters
of the thesis:

    start:        w_i = LocalUpdate(w), one random model w for all
                  draw B blocks of n_B > K clients with replacement
                  each block b: c_1, ..., c_K = k-means++ of its w_i, and its risk R_b
                  the centres are those of the block with the median risk
    for t = 0, ..., T - 1:
        server:   draw B blocks of n_B clients with replacement; for each block b:
            E step:   the cluster of i is argmin_k |w_i - c_k|, i in b
            M step:   c_k^b = mean of w_i over the clients of b in cluster k
            R_b = sum over i in b of |w_i - c_k^b|^2 / n_B, k the cluster of i
        b* = the block with the median risk
        client i: w_i = LocalUpdate(c_k^b*), i in b*, k the cluster of i
        server:   c_k = mean of w_i over the clients of b* in cluster k

The server keeps w_i of every client; only those of b* are renewed in a round.

Differences from the thesis
- n_B is not given there. By default it is the largest for which most blocks have no outlier if
  `outliers` is their share, that is (1 - outliers)^n_B > 1/2, but at least 2 K (`block=0`).
- `members` is the author's rule that a block counts only if each cluster has two clients in it;
  the text has none. If no block counts, all do; the author's code starts again from the beginning.
- `risk=all` is not the author's: the risk of a block is the mean over the nearest 70 % of *all*
  clients of their squared distance to its centres, and the block with the lowest risk is taken. To
  its own mean an outlier that is alone in its cluster has distance 0.
- `draw=clusters` draws equally many clients of each cluster.
- A client that is drawn twice counts twice in the M step of its block, and trains once.
- Only the clients that take part in a round are in its blocks. A client whose model the server does
  not have trains from the centre with the lowest loss, beside the block.
- A cluster of which nobody trained keeps the centre it had.
- Clients are served the centre with the lowest loss on their training samples. In the author's code
  it is the one nearest to the model that the server has of the client (`serves=nearest`), which is
  from another time than the centres unless the client was in the last block.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import steps
from coterie.algorithms.first_centres import CentreSettings, clustered_part, trained_models
from coterie.core import seeds
from coterie.core.algorithm import Info, Serving, Start, Traits
from coterie.core.clients import Clients, Each, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieWarning, SettingError
from coterie.core.fields import Model
from coterie.core.settings import setting
from coterie.core.validate import at_least, at_most_clients, in_range, one_of
from coterie.vectors.blocks import (
    draw_blocks,
    draw_blocks_by_cluster,
    median_place,
    safe_block_size,
)
from coterie.vectors.kmeans import (
    canonical_order,
    centroids,
    kmeans,
    nearest_centre,
    squared_distances,
)

TRUSTED = 0.7  # share of all clients by whose distances `risk=all` judges a block


class State(NamedTuple):
    models: Tensor  # [k, d] centres c_k
    cluster: Tensor  # [m] the cluster of each client, -1 if the server has no model of it
    known: Tensor  # [m, d] w_i


class Upload(NamedTuple):
    model: Model  # [m, d] w_i


class JudgedBlock(NamedTuple):
    """A block of clients, as it is judged."""

    places: Tensor  # [n_B] of clients among those it was drawn from; one may be there twice
    cluster: Tensor  # [n_B]
    centres: Tensor  # [k, p] c^b
    risk: float  # R_b


@dataclass(frozen=True, kw_only=True)
class FedRoC(CentreSettings):
    """Clients train in the clusters of one block, that with the median risk of many."""

    tries: int = setting(1, "clusterings of a block at the start; the tightest counts", at_least(1))
    block_count: int = setting(50, "blocks B that are drawn in a round", at_least(1))
    block: float = setting(
        0.0, "clients n_B in a block, below 1 a share of all; 0: by `outliers`", at_least(0)
    )
    outliers: float = setting(0.05, "share of outliers that blocks are made for", in_range(0, 0.5))
    members: int = setting(0, "clients of each cluster that a block must have", at_least(0))
    risk: str = setting(
        "block", "whose distances a risk is of; all: the lowest counts", one_of("block", "all")
    )
    draw: str = setting(
        "clients", "what blocks are drawn from; clusters: each alike", one_of("clients", "clusters")
    )

    serves: str = setting(
        "loss",
        "the centre a client uses; loss: the best one, nearest: to what the server has of it",
        one_of("loss", "nearest"),
    )

    traits: ClassVar[Traits] = Traits(clusters="k", models="models", averages=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block >= 1 and (self.block <= self.k or self.block % 1):
            raise SettingError(
                f"`block` of FedRoC must be a whole number above k = {self.k}, a share below 1 or "
                f"0, got {self.block:g}"
            )

    def init(self, start: Start) -> State:
        at_most_clients(self, "k", start.clients)
        safe = safe_block_size(self.outliers)
        if not self.block and 2 * self.k > safe:
            warnings.warn(
                f"no block size of FedRoC is safe: with outliers={self.outliers:g} most blocks are "
                f"free of them only if they have at most {safe:g} clients, and k={self.k} clusters "
                f"need {2 * self.k}, which is taken",
                CoterieWarning,
                stacklevel=2,
            )
        model = start.models(1)[0]
        ids, w = trained_models(self.train, start.all_clients(), self.k, model=model)
        clustered = clustered_part(start.task.layout, self.part)
        points = clustered.parts(w)[0]
        blocks = []
        for b, places in enumerate(self._places(points, None, start.generator("blocks"))):
            seed = seeds.derive(start.seed, "block", b)
            found = kmeans(points[places], self.k, seed, tries=self.tries)
            blocks.append(self._judge(points, places, found.cluster, found.centres))
        centres = self._best(blocks).centres
        models = clustered.whole(centres, clustered.parts(model)[1])
        cluster = torch.full((start.clients,), -1)
        cluster[ids] = nearest_centre(points, centres)
        return State(models, cluster, model.repeat(start.clients, 1).index_copy(0, ids, w))

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        here = clients.ids[state.cluster[clients.ids] >= 0]
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        clustered = clustered_part(clients.task.layout, self.part)
        centres, members = state.models, here[:0]
        if len(here):
            w = state.known[here]
            points, now = clustered.parts(w)[0], clustered.parts(centres)[0]
            near = nearest_centre(points, now)
            places = self._places(points, near, clients.generator("blocks"))
            means = [centroids(points[b], near[b], now) for b in places]
            judged = zip(places, means, strict=True)
            best = self._best([self._judge(points, b, near[b], c) for b, c in judged]).places
            centres, members = centroids(w[best], near[best], centres), here[best].unique()
            cluster = cluster.index_put((here,), near)
        new = clients.ids[~torch.isin(clients.ids, here)]
        some = clients.only(torch.cat([members, new]))
        ids, up = some.run(self.train, model=Each(centres, cluster))
        if not len(ids):
            return state, Info(ids, ids, self.k)
        finite = up.model.isfinite().all(1)
        ids, w = ids[finite], up.model[finite]
        inside = torch.isin(ids, members)
        models = centroids(w[inside], cluster[ids[inside]], state.models)
        known = state.known.index_copy(0, ids, w)
        have = (state.cluster >= 0).index_fill(0, ids, True)
        nearest = nearest_centre(*(clustered.parts(each)[0] for each in (known, models)))
        after = State(models, nearest.masked_fill(~have, -1), known)
        return after, Info(ids, after.cluster[ids], self.k)

    def serve(self, state: State, clients: Clients) -> Serving:
        if self.serves == "loss":
            models = state.models
            return steps.serve_by_choice(self.choose, models, clients, models=models)
        clients, cluster = steps.with_newcomers(self.choose, state.models, state.cluster, clients)
        return Serving(state.models, clients.ids, cluster[clients.ids])

    choose = steps.choose

    @on_client(origins={"model": "model"})
    def train(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(self.local_update(cohort, model.expand(len(cohort), -1)))

    def block_size(self, clients: int) -> int:
        """n_B of so many clients: above K, and no more than there are unless K asks for it."""
        if self.block >= 1:
            return int(self.block)
        share = self.block * clients
        size = share if self.block else max(2 * self.k, safe_block_size(self.outliers))
        return max(self.k + 1, int(min(size, clients)))

    def _places(self, points: Tensor, cluster: Tensor | None, generator: torch.Generator) -> Tensor:
        """The clients [B, n_B] of every block, drawn in an order that is not that of their ids."""
        order, size = canonical_order(points, 0), self.block_size(len(points))
        if cluster is None or self.draw == "clients":
            return order[draw_blocks(len(points), self.block_count, size, generator)]
        return order[draw_blocks_by_cluster(cluster[order], self.block_count, size, generator)]

    def _judge(
        self, points: Tensor, places: Tensor, cluster: Tensor, centres: Tensor
    ) -> JudgedBlock:
        """A block of points [n, p] with its risk: mean squared distances to its own centres."""
        if self.risk == "block":
            apart = squared_distances(points[places], centres)
            risk = apart.gather(1, cluster[:, None]).mean()
        else:
            apart = squared_distances(points, centres).amin(1).sort().values
            risk = apart[: max(1, int(TRUSTED * len(apart)))].mean()
        return JudgedBlock(places, cluster, centres, float(risk))

    def _best(self, blocks: list[JudgedBlock]) -> JudgedBlock:
        """The block with the median risk, or with the lowest, of those that count."""
        counted = [block for block in blocks if self._counts(block)] or blocks
        risks = torch.tensor([block.risk for block in counted], dtype=torch.float64)
        # Blocks of the same clients have the same risk but for rounding, which shall not decide.
        risks = (risks / risks.median().clamp_min(torch.finfo(risks.dtype).tiny)).round(decimals=9)
        return counted[median_place(risks) if self.risk == "block" else int(risks.argmin())]

    def _counts(self, block: JudgedBlock) -> bool:
        """Whether each cluster has enough different clients in a block."""
        pairs = torch.stack([block.places, block.cluster]).unique(dim=1)
        return bool((torch.bincount(pairs[1], minlength=self.k) >= self.members).all())
