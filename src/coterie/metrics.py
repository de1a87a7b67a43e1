"""How good a clustering is, and how near learned parameters are to the truth.

Accuracy, F1 and loss come from the task (`Task.summary`), for they depend on what is predicted.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor


def clustering(found: Tensor, true: Tensor) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information and purity of found clusters [m].

    >>> clustering(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    {'ari': 1.0, 'nmi': 1.0, 'purity': 1.0}
    >>> clustering(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 1, 1]))["purity"]
    0.5
    """
    a, b = found.numpy(), true.numpy()
    return {
        "ari": float(adjusted_rand_score(b, a)),
        "nmi": float(normalized_mutual_info_score(b, a)),
        "purity": purity(a, b),
    }


def matched(found: Tensor, true: Tensor) -> float:
    """The share of samples that are in the right cluster, found and true ones paired one to one.

    The pairing is the best there is. Two clusters found in one true cluster pass for purity, but
    one of them is wrong here.

    >>> matched(torch.tensor([0, 0, 1, 2]), torch.tensor([5, 5, 5, 6]))
    0.75
    """
    a = np.unique(found.numpy(), return_inverse=True)[1]
    b = np.unique(true.numpy(), return_inverse=True)[1]
    together = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(together, (a, b), 1)
    return float(together[linear_sum_assignment(-together)].sum()) / len(a)


def purity(found: np.ndarray, true: np.ndarray) -> float:
    """The share of clients whose true cluster is the commonest in their found cluster."""
    hits = sum(np.unique(true[found == j], return_counts=True)[1].max() for j in np.unique(found))
    return float(hits) / len(found)


def distances(models: Tensor, truth: Tensor) -> dict[str, float]:
    """Mean Euclidean distance of learned models [k, d] to true parameters [groups, d].

    `distance_nearest` takes for each model the nearest truth, as the IFCA authors' code does, so
    two models on one truth still pass. `distance` pairs models and truths one to one, by the
    pairing with the least sum; it is there when there are as many of one as of the other.

    >>> distances(torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [3.0]]))
    {'distance_nearest': 0.0, 'distance': 1.5}
    """
    apart = torch.cdist(models.double(), truth.double()).nan_to_num(nan=torch.inf)
    found = {"distance_nearest": float(apart.amin(1).mean())}
    if len(models) == len(truth):
        if not bool(torch.isfinite(apart).all()):
            return {**found, "distance": float("inf")}
        pairs = linear_sum_assignment(apart.numpy())
        found["distance"] = float(apart.numpy()[pairs].mean())
    return found
