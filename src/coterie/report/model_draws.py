"""Draws from the models of clusters: what a server may look at, as the paper on UIFCA proposes.

No sample has to leave a client for it. A task with models to draw from has the method `generate`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.report.sample_sheets import COLUMNS, ROWS, as_colour_images

VECTORS = 400  # draws from a model, to tell how its features are distributed
MOST_CLUSTERS = 64  # with more models than this none is drawn from


def draw_from_models(
    task: Task, models: Tensor, federation: Federation, seed: int
) -> dict[int, Tensor]:
    """Draws [n, ...] from each of models [k, d] by its index, in the units of stored samples.

    A model that has diverged has none; empty where models cannot be drawn from.
    """
    generate, x = getattr(task, "generate", None), federation.train.x
    if generate is None or not isinstance(x, Tensor) or len(models) > MOST_CLUSTERS:
        return {}
    count = VECTORS if as_colour_images(x[:1]) is None else ROWS * COLUMNS
    draws = {}
    for j, model in enumerate(models):
        if not bool(torch.isfinite(model).all()):
            continue
        try:
            drawn = generate(model, count, seeds.generator(seed, "draws", j))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # a flow without inverse
            continue
        if drawn is None:
            return {}
        draws[j] = drawn * getattr(task, "scale", 1.0)
    return draws
