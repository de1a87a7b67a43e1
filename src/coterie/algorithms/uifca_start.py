"""UIFCA's start from k-FED: one of them or several, on the samples or on their components.

k-means goes by distances, and so by the directions in which samples differ most, which need not be
those in which clusters differ. With `components` = q clients say the sums by which all of them know
the q principal components of all samples, and k-FED sees every sample along these, each divided by
its deviation. `restarts` such k-FEDs, each from draws of its own, make as many first partitions;
UIFCA follows them side by side and keeps that with the lowest training loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.algorithms.k_fed import KFed, find_centres
from coterie.core import seeds
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, SettingError
from coterie.core.fields import Statistic
from coterie.data.principal import SampleSums, leading_components
from coterie.vectors.folds import WeightedRows
from coterie.vectors.kmeans import nearest_centre
from coterie.vectors.moments import second_moments

MOST_MOMENTS = 2**23  # numbers of all restarts together, where fit=exact decides their number
NOBODY = "no client answered during the start, so that k-FED found no centre"


class SampleProducts(NamedTuple):
    size: Statistic  # [m, 1] samples
    mean: Statistic  # [m, 1, f]
    square: Statistic  # [m, 1, f f] mean of x x^T


class StartCentres(NamedTuple):
    centres: Statistic  # [m, r, k', q] theta of each start, that with the most samples first
    number: Statistic  # [m, r] how many centres there are: at most k'


@on_client(fold=WeightedRows)
def measure_products(self: Any, cohort: Cohort) -> SampleProducts:
    # In double precision, as far from zero the products are large and what is looked for is not.
    points = [x.flatten(1).double() for x, _ in cohort]
    ones = [x.new_ones(len(x), 1) for x in points]
    mean = torch.stack([x.sum(0) / max(1, len(x)) for x in points])[:, None]
    return SampleProducts(cohort.size[:, None].double(), mean, second_moments(points, ones))


@on_client
def find_start(self: Any, cohort: Cohort, components: Tensor, seed: Tensor) -> StartCentres:
    up = start_centres(self, cohort, components, int(seed))
    cohort.keep("centres", up.centres)
    cohort.keep("number", up.number)
    return up


def count_starts(settings: Any, features: int) -> int:
    """How many starts UIFCA follows at first; `features` are those of a sample."""
    if settings.start == "truth":
        return 1
    restarts: int = settings.restarts
    if restarts or settings.start == "k-fed":
        return restarts or 1
    if settings.fit == "descent":
        return 4
    k: int = settings.k
    return max(1, min(16, MOST_MOMENTS // (k * features**2)))


def ask_k_fed(algorithm: Any, clients: Clients, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The components that k-FED sees, and the centres [r, k, q] by which each start makes sets."""
    components = ask_components(algorithm, clients)
    ids, up = clients.run(algorithm.find_start, components=components, seed=seed)
    if len(ids) == 0:
        raise CoterieError(NOBODY)
    method = k_fed(algorithm)
    chosen = [
        method.cluster_centres(up.centres[:, i], up.number[:, i], start_seed(int(seed), i))[0]
        for i in range(up.number.shape[1])
    ]
    return components, torch.stack(chosen)


def ask_components(algorithm: Any, clients: Clients) -> Tensor:
    """What `project` takes: a matrix [f, q] and below it, [1, q], what is subtracted.

    Nothing, [0, 0], where k-FED sees the samples as they are.
    """
    task: Any = clients.task
    if not algorithm.components:
        return torch.zeros(0, 0, dtype=task.layout.dtype)
    features = task.features
    if not features:
        raise SettingError(
            "`components` of UIFCA must be 0 for a network that does not say how many numbers a "
            f"sample has, as linear-flow and realnvp do, got {algorithm.components}"
        )
    fold = WeightedRows(1, "size", updates={"mean": features, "square": features * features})
    ids, up = clients.run(algorithm.measure_products, fold=fold)
    if len(ids) == 0:
        raise CoterieError(NOBODY)
    products = up.sum("square")[0].view(features, features)
    sums = SampleSums(int(up.weight), up.sum("mean")[0], products)
    mean, directions, deviation = leading_components(sums, algorithm.components)
    # Nothing is said by a direction in which nothing differs.
    matrix = directions * torch.where(deviation > 0, 1 / deviation.clamp_min(1e-300), 0.0)
    return torch.cat([matrix, (mean @ matrix)[None]]).to(task.layout.dtype)


def project(x: Tensor, components: Tensor) -> Tensor:
    """What k-FED sees of samples [n, ...]: [n, q] along the components, or all numbers [n, f].

    >>> twice_the_first = torch.tensor([[2.0], [0.0], [1.0]])
    >>> project(torch.tensor([[3.0, 7.0]]), twice_the_first).tolist()
    [[5.0]]
    """
    flat = x.flatten(1)
    return flat @ components[:-1] - components[-1] if len(components) else flat


def k_fed_label(
    settings: Any, cohort: Cohort, chosen: Tensor, components: Tensor, seed: int
) -> Tensor:
    """The set [m, n, r] of each sample in each start, by the centres [r, k, q] of the server."""
    if bool(cohort.remembers("centres").all()):
        own = StartCentres(cohort.recall("centres"), cohort.recall("number"))
    else:  # found now by those who never took part
        now = start_centres(settings, cohort, components, seed)
        own = StartCentres(*(cohort.recall(name, now._asdict()[name]) for name in now._fields))
    labels = []
    for (x, _), centres, number in zip(cohort, own.centres, own.number.tolist(), strict=True):
        points = project(x, components)
        each = [
            nearest_centre(theta[:n], server)[nearest_centre(points, theta[:n])]
            for theta, n, server in zip(centres, number, chosen, strict=True)
        ]
        labels.append(torch.stack(each, 1))
    return pad_sequence(labels, batch_first=True)


def start_centres(settings: Any, cohort: Cohort, components: Tensor, seed: int) -> StartCentres:
    """The centres that clients find for each start, client by client."""
    points, method = [project(x, components) for x, _ in cohort], k_fed(settings)
    found = [
        find_centres(points, settings.k_local or settings.k, start_seed(seed, i), method.tries)
        for i in range(settings.restarts or 1)
    ]
    return StartCentres(*(torch.stack(each, 1) for each in zip(*found, strict=True)))


def start_seed(seed: int, i: int) -> int:
    """Where the draws of start i begin."""
    return seeds.derive(seed, "k-fed", i) if i else seed


def k_fed(settings: Any) -> KFed:
    """The method that makes the first sets with start=k-fed."""
    return KFed(k=settings.k, k_local=settings.k_local, server="k-means")
