"""The map of samples: some training samples as points in the plane, where samples are clustered.

They are placed as clients are on theirs (client_map.py): by their losses under all models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import Serving
from coterie.data.federation import Federation
from coterie.evaluation.client_map import compares_losses, place_in_plane
from coterie.evaluation.scoring import Scorer

PLACED = 600  # samples at most


def sample_map(
    scorer: Scorer, federation: Federation, serving: Serving, labels: Tensor | None, seed: int
) -> dict[str, Any] | None:
    """What the map is drawn from, and its samples as columns: places, clusters, clients, losses.

    `labels` [N] are the clusters of all training samples, -1 unknown. None where there is no map:
    samples stay with the clients, no cluster is known, or one model is too few.
    """
    known = torch.arange(0) if labels is None else torch.nonzero(labels >= 0).flatten()
    if labels is None or not len(known) or not compares_losses(serving):
        return None
    order = torch.randperm(len(known), generator=seeds.generator(seed, "map of samples"))
    rows = known[order[:PLACED]].sort().values
    losses = scorer.sample_losses(serving, rows)
    if losses is None:
        return None
    drawn, points = place_in_plane(losses, by_loss=True)
    found, names = labels[rows], federation.classes
    true = federation.train.y[rows].tolist() if federation.sample_clusters else None
    return {
        "drawn": drawn,
        "x": points[:, 0].tolist(),
        "y": points[:, 1].tolist(),
        "client": (torch.searchsorted(federation.train.offsets, rows, right=True) - 1).tolist(),
        "cluster": found.tolist(),
        "true": [names[t] for t in true] if true is not None and names else true,
        "loss": losses.gather(1, found[:, None])[:, 0].tolist(),
    }
