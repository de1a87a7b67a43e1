"""Samples of each cluster as pictures, for federations of images.

A sheet shows a few clients of one cluster, a row for each, as the thesis on multi-center federated
learning does for the writers of FEMNIST. Where samples are clustered, its rows are mixed.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from coterie.core import seeds
from coterie.data.federation import Federation, Samples

CLUSTERS = 12  # sheets at most, of the largest clusters
ROWS, COLUMNS = 4, 10
SIDE = 40  # pixels; larger images are made smaller
GAP = 2  # pixels between two images
SMALLEST = 8  # pixels; what has fewer is hardly an image


def sample_sheets(
    federation: Federation, cluster: Tensor, labels: Tensor | None, seed: int
) -> list[dict[str, Any]]:
    """One sheet for each cluster: its index, the clients in its rows, a PNG in base64.

    `cluster` [m] are the clusters of the clients, `labels` [N] those of the training samples where
    it is they that are clustered. Empty where samples are not images, or are not here.
    """
    samples = federation.train
    if not isinstance(samples.x, Tensor) or not isinstance(samples.y, Tensor):
        return []
    if len(samples.x) < int(samples.offsets[-1]) or as_colour_images(samples.x[:1]) is None:
        return []
    found = cluster if labels is None else labels
    sizes = torch.bincount(found[found >= 0])
    if len(sizes) == len(cluster) > 1 and labels is None and int(sizes.max()) == 1:
        return []  # every client is a cluster of its own
    largest = sizes.argsort(descending=True, stable=True)[:CLUSTERS]
    made = []
    for j in sorted(largest[sizes[largest] > 0].tolist()):
        members = torch.nonzero(found == j).flatten()
        generator = seeds.generator(seed, "pictures", j)
        members = members[torch.randperm(len(members), generator=generator)]
        if labels is None:
            clients = members[:ROWS].sort().values.tolist()
            rows = [rows_over_labels(samples, i) for i in clients]
        else:
            clients = []
            rows = list(members[: ROWS * COLUMNS].split(COLUMNS))
        made.append({"cluster": j, "clients": clients, "png": sheet_png(samples.x, rows)})
    return made


def rows_over_labels(samples: Samples, i: int) -> Tensor:
    """The rows of up to ten samples of client i, over all its labels in order."""
    _, y = samples.client(i)
    order: Tensor = (y if y.dim() == 1 else y.flatten(1)[:, 0]).argsort(stable=True)
    places = torch.linspace(0, len(y) - 1, min(COLUMNS, len(y))).round().long()
    return samples.offsets[i] + order[places]


def as_colour_images(x: Tensor) -> Tensor | None:
    """Features [n, ...] as colour images [n, 3, height, width]; None where they are none."""
    if x.dim() == 3:
        x = x[:, None]
    if x.dim() != 4:
        return None
    if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.movedim(3, 1)
    if x.shape[1] not in (1, 3) or min(x.shape[2:]) < SMALLEST:
        return None
    return x.expand(-1, 3, -1, -1)


def sheet_png(x: Tensor, rows: list[Tensor]) -> str:
    """Rows of samples on one sheet, with transparent gaps."""
    picked = as_colour_images(x[torch.cat(rows)])
    assert picked is not None
    if picked.dtype != torch.uint8:
        low, high = picked.min(), picked.max()
        picked = ((picked - low) / (high - low).clamp_min(1e-12) * 255).to(torch.uint8)
    height, width = picked.shape[2:]
    shrink = min(1.0, SIDE / max(height, width))
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    step = (size[0] + GAP, size[1] + GAP)
    sheet = Image.new("RGBA", (COLUMNS * step[0] - GAP, len(rows) * step[1] - GAP))
    pending = iter(picked.movedim(1, 3).contiguous().numpy())
    for i, row in enumerate(rows):
        for j in range(len(row)):
            tile = Image.fromarray(next(pending))
            tile = tile if tile.size == size else tile.resize(size, Image.Resampling.BOX)
            sheet.paste(tile, (j * step[0], i * step[1]))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
