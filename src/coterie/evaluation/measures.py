"""How good a clustering is, and how near learned parameters are to the truth.

Accuracy, F1 and loss come from the task (`Task.metrics`), for they depend on what is predicted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.vectors.davies_bouldin import davies_bouldin_of_blocks


def clustering_scores(found: Tensor, true: Tensor) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information and purity of found clusters [m].

    >>> clustering_scores(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    {'ari': 1.0, 'nmi': 1.0, 'purity': 1.0}
    >>> clustering_scores(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 1, 1]))["purity"]
    0.5
    """
    counts = contingency_table(found, true)
    return {
        "ari": adjusted_rand_index(counts),
        "nmi": normalised_mutual_information(counts),
        "purity": float(counts.max(1).sum() / counts.sum()),
    }


def contingency_table(found: Tensor, true: Tensor) -> np.ndarray:
    """How many are in each found cluster and each true one, [found, true]."""
    a = np.unique(found.numpy(), return_inverse=True)[1]
    b = np.unique(true.numpy(), return_inverse=True)[1]
    counts = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(counts, (a, b), 1)
    return counts


def adjusted_rand_index(counts: np.ndarray) -> float:
    """Pairs that two clusterings agree on, 0 by chance and 1 at most (Hubert and Arabie, 1985)."""

    def pairs(sizes: np.ndarray) -> float:
        return float((sizes * (sizes - 1)).sum() / 2)

    found, true = pairs(counts.sum(1)), pairs(counts.sum(0))
    whole = pairs(counts.sum())
    by_chance = found * true / whole if whole else 0.0
    most = (found + true) / 2
    return 1.0 if most == by_chance else (pairs(counts) - by_chance) / (most - by_chance)


def normalised_mutual_information(counts: np.ndarray) -> float:
    """What each clustering tells of the other, as a share of the mean of their entropies."""

    def entropy(sizes: np.ndarray) -> float:
        share = np.sort(sizes[sizes > 0]) / counts.sum()  # sorted: equal sizes give equal sums
        return float(-(share * np.log(share)).sum())

    found, true, both = entropy(counts.sum(1)), entropy(counts.sum(0)), entropy(counts)
    return max(0.0, 2 * (found + true - both) / (found + true)) if found + true else 1.0


def matched_fraction(found: Tensor, true: Tensor) -> float:
    """The share of samples that are in the right cluster, found and true ones paired one to one.

    The pairing is the best there is. Two clusters found in one true cluster pass for purity, but
    one of them is wrong here.

    >>> matched_fraction(torch.tensor([0, 0, 1, 2]), torch.tensor([5, 5, 5, 6]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment  # few runs need it, and it takes long

    counts = contingency_table(found, true)
    return float(counts[linear_sum_assignment(-counts)].sum() / counts.sum())


def davies_bouldin(points: Tensor, cluster: Tensor) -> float | None:
    """How much each cluster of points [m, d] is like the one that is most like it; 0 is best.

    Two clusters are alike by the mean distances of their points to the centres, added up and
    divided by the distance of the centres (Davies and Bouldin, 1979). None where there are fewer
    than two clusters; infinite where two have the same centre.

    >>> davies_bouldin(torch.tensor([[0.0], [2.0], [9.0], [11.0]]), torch.tensor([0, 0, 1, 1]))
    0.2222222222222222
    """
    return davies_bouldin_of_blocks([points], cluster)


def distances_to_truth(models: Tensor, truth: Tensor) -> dict[str, float]:
    """Mean Euclidean distance of learned models [k, d] to true parameters [groups, d].

    `distance_nearest` takes for each model the nearest truth, as the IFCA authors' code does, so
    two models on one truth still pass. `distance` pairs models and truths one to one, by the
    pairing with the least sum; it is there when there are as many of one as of the other.

    >>> distances_to_truth(torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [3.0]]))
    {'distance_nearest': 0.0, 'distance': 1.5}
    """
    from scipy.optimize import linear_sum_assignment

    apart = torch.cdist(models.double(), truth.double()).nan_to_num(nan=torch.inf)
    found = {"distance_nearest": float(apart.amin(1).mean())}
    if len(models) == len(truth):
        if not bool(torch.isfinite(apart).all()):
            return {**found, "distance": float("inf")}
        pairs = linear_sum_assignment(apart.numpy())
        found["distance"] = float(apart.numpy()[pairs].mean())
    return found
