"""The start of methods that cluster the clients' models: centres of what clients make of one model.

    client i: W_i = LocalUpdate(W), one common model W for all
    server:   W~_1, ..., W~_K = the tightest of several clusterings of the W_i

All models begin at the same W, so that they differ by what clients taught them. `clustered_part`
says over which of their parameters distances are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import REDRAWS
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.fields import Model, Size
from coterie.core.layout import Layout
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.shared_trunk import SharedTrunk
from coterie.core.task import Task
from coterie.core.validate import at_least
from coterie.vectors.folds import ByCluster, NearestCentre
from coterie.vectors.kmeans import ITERATIONS, centroids, kmeans, nearest_centre


class Fit(NamedTuple):
    model: Model  # [m, p] W_i, or the part of it that is clustered
    size: Size  # [m] samples n_i


class FirstCentres(NamedTuple):
    """What a clustering of the clients' first models gives."""

    models: Tensor  # [k, d] centres W~, which differ in the part that is clustered only
    cluster: Tensor  # [m] the cluster of each client, -1 if its model did not arrive


def first_sample_setting() -> Any:
    """The setting of how many clients k-means sees at the start; several methods have it."""
    meaning = "clients k-means sees at the start; others join the nearest centre"
    return setting(500, meaning, at_least(1))


@dataclass(frozen=True, kw_only=True)
class CentreSettings(LocalTraining):
    """Settings of local training and of how the first centres are found."""

    k: int = setting(2, "clusters K", at_least(1))
    part: str = setting("all", "parameters that distances are over: all, head, body or a layer")
    tries: int = setting(20, "clusterings at the start, of which the tightest is kept", at_least(1))


def fit_origin(algorithm: Any, task: Task, sent: Mapping[str, Any]) -> Tensor:
    """What clients began their fit at, [p]: the clustered part of the common model."""
    return clustered_part(task.layout, algorithm.part).parts(sent["model"])[0]


@on_client(origins={"model": fit_origin})
def fit_part(self: CentreSettings, cohort: Cohort, model: Tensor) -> Fit:
    w = self.local_update(cohort, model.expand(len(cohort), -1))
    return Fit(clustered_part(cohort.task.layout, self.part).parts(w)[0], cohort.size)


@dataclass(frozen=True)
class FirstClustering:
    """How the first models are clustered."""

    k: int
    part: str  # the parameters that distances are over
    tries: int  # clusterings, of which the tightest is kept
    sample: int  # clients k-means sees; others join the nearest centre
    trim: float = 0.0  # share that the means of k-means leave out at each end
    iterations: int = ITERATIONS  # of k-means, at most
    # Which points [n, p] are no outliers, [n]; only these are clustered.
    inliers: Callable[[Tensor], Tensor] | None = None
    outliers_first: bool = True  # False: all are clustered, then outliers leave the means

    def find(
        self, step: Callable[..., Fit], clients: Clients, model: Tensor, seed: int
    ) -> FirstCentres:
        """k models and the clusters of `clients`, from what they make of one common model [d].

        `step` is the client step that trains it and sends the part.
        """
        clustered = clustered_part(clients.task.layout, self.part)
        first = sample_clients(clients, max(self.sample, self.k), seed)
        ids, points = trained_models(step, first, self.k, model=model)
        centres, found = self._cluster(points, seed)
        cluster = torch.full((clients.population,), -1).index_put((ids,), found)
        rest = clients.only(clients.ids[~torch.isin(clients.ids, first.ids)])
        fold = ByCluster(self.k, assign=NearestCentre("model", centres))
        others, near = rest.run(step, fold=fold, model=model)
        assert near.cluster is not None  # the server assigns them
        cluster = cluster.index_put((others,), near.cluster)
        return FirstCentres(clustered.whole(centres, clustered.parts(model)[1]), cluster)

    def _cluster(self, points: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Centres [k, p] of points [n, p], and the cluster of each [n], also of the outliers."""
        inside = torch.ones(len(points), dtype=torch.bool)
        if self.inliers is not None:
            inside = self.inliers(points)
        if int(inside.sum()) < self.k:  # too few to find clusters by
            inside = torch.ones_like(inside)
        everybody = bool(inside.all())
        found = kmeans(
            points[inside] if self.outliers_first and not everybody else points,
            self.k,
            seed,
            tries=self.tries,
            trim=self.trim,
            iterations=self.iterations,
        )
        if everybody:
            return found.centres, found.cluster
        if self.outliers_first:
            return found.centres, nearest_centre(points, found.centres)
        return centroids(points[inside], found.cluster[inside], found.centres), found.cluster


def trained_models(
    step: Callable[..., Any], clients: Clients, least: int, **sent: Any
) -> tuple[Tensor, Tensor]:
    """Whose model arrived and is finite [a], and these models [a, p]; at least so many.

    `step` uploads a field named `model`. Replies may be lost: clients are asked again.
    """
    for _ in range(REDRAWS):
        ids, up = clients.run(step, **sent)
        if len(ids) < least:
            continue
        finite = up.model.isfinite().all(1)
        if int(finite.sum()) >= least:
            return ids[finite], up.model if finite.all() else up.model[finite]
    raise CoterieError(
        f"fewer than k = {least} clients sent a finite model to begin with, so that no "
        "clusters could be found"
    )


def clustered_part(layout: Layout, name: str) -> SharedTrunk:
    """The part of a model that is clustered; buffers are no parameters and never are."""
    part = layout.part(name)
    part[layout.trained_size :] = False
    return SharedTrunk(part)


def sample_clients(clients: Clients, count: int, seed: int) -> Clients:
    """At most `count` of the clients, drawn at random."""
    if len(clients.ids) <= count:
        return clients
    order = torch.randperm(len(clients.ids), generator=seeds.generator(seed, "few"))
    return clients.only(clients.ids[order[:count]])
