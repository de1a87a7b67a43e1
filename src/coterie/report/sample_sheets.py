"""Samples of each cluster as pictures, for federations of images.

A sheet shows a few clients of one cluster, a row for each, as the thesis on multi-center federated
learning does for the writers of FEMNIST. Where samples are clustered, its rows are mixed, and draws
from the model of the cluster are a sheet beside it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.data.federation import Federation, Samples

CLUSTERS = 12  # sheets at most, of the largest clusters
ROWS, COLUMNS = 4, 10
SIDE = 40  # pixels; larger images are made smaller
GAP = 2  # pixels between two images
SMALLEST = 8  # pixels; what has fewer is hardly an image


def sample_sheets(
    federation: Federation,
    cluster: Tensor,
    labels: Tensor | None,
    seed: int,
    draws: Mapping[int, Tensor] | None = None,
) -> list[dict[str, Any]]:
    """Sheets for each cluster: its index, the clients in its rows, samples and draws as PNG.

    `cluster` [m] are the clusters of the clients, `labels` [N] those of the training samples where
    it is they that are clustered, `draws` [n, ...] those from the models of some clusters, in the
    units of the samples. A PNG is in base64, None where there is none: samples may not be here.
    Empty where samples are not images.
    """
    samples, drawn = federation.train, draws or {}
    if not isinstance(samples.x, Tensor) or as_colour_images(samples.x[:1]) is None:
        return []
    here = isinstance(samples.y, Tensor) and len(samples.x) >= int(samples.offsets[-1])
    chosen = choose_rows(samples, cluster, labels, seed) if here else {}
    shown = {j: samples.x[torch.cat(rows)] for j, (_, rows) in chosen.items()}
    low, high = shades(samples.x, list((shown or drawn).values()))
    made = []
    for j in sorted([*chosen, *(j for j in drawn if j not in chosen)][:CLUSTERS]):
        clients, rows = chosen.get(j, ([], []))
        widths = [len(row) for row in rows]
        made.append(
            {
                "cluster": j,
                "clients": clients,
                "png": sheet_png(shown[j], widths, low, high) if rows else None,
                "draws": sheet_png(drawn[j], full_rows(drawn[j]), low, high)
                if j in drawn
                else None,
            }
        )
    return made


def choose_rows(
    samples: Samples, cluster: Tensor, labels: Tensor | None, seed: int
) -> dict[int, tuple[list[int], list[Tensor]]]:
    """For the largest clusters the clients that are shown, and the rows of samples on the sheet.

    Empty where every client is a cluster of its own. No client is told where samples are clustered.
    """
    found = cluster if labels is None else labels
    sizes = torch.bincount(found[found >= 0])
    if len(sizes) == len(cluster) > 1 and labels is None and int(sizes.max()) == 1:
        return {}
    largest = sizes.argsort(descending=True, stable=True)[:CLUSTERS]
    chosen: dict[int, tuple[list[int], list[Tensor]]] = {}
    for j in largest[sizes[largest] > 0].tolist():
        members = torch.nonzero(found == j).flatten()
        generator = seeds.generator(seed, "pictures", j)
        members = members[torch.randperm(len(members), generator=generator)]
        if labels is None:
            clients = members[:ROWS].sort().values.tolist()
            chosen[j] = clients, [rows_over_labels(samples, i) for i in clients]
        else:
            chosen[j] = [], list(members[: ROWS * COLUMNS].split(COLUMNS))
    return chosen


def shades(x: Tensor, shown: Sequence[Tensor]) -> tuple[float, float]:
    """The numbers that are black and white: those of bytes, or the range of what is `shown`."""
    if x.dtype == torch.uint8 or not shown:
        return 0.0, 255.0
    finite = torch.cat([images.flatten() for images in shown]).nan_to_num(posinf=0.0, neginf=0.0)
    return float(finite.min()), float(finite.max())


def full_rows(images: Tensor) -> list[int]:
    """How many of images [n, ...] are in each row of a sheet."""
    return [len(row) for row in images.split(COLUMNS)]


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


def sheet_png(images: Tensor, widths: Sequence[int], low: float, high: float) -> str:
    """Images [n, ...] on one sheet, as many in each row as `widths` says, with transparent gaps.

    What is not above `low` is black, what is not below `high` white.
    """
    from PIL import Image  # images are rare; tables do without

    picked = as_colour_images(images)
    assert picked is not None
    scaled = (picked.float().nan_to_num() - low) / max(high - low, 1e-12) * 255
    picked = scaled.clamp(0, 255).round().to(torch.uint8)
    height, width = picked.shape[2:]
    shrink = min(1.0, SIDE / max(height, width))
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    step = (size[0] + GAP, size[1] + GAP)
    sheet = Image.new("RGBA", (COLUMNS * step[0] - GAP, len(widths) * step[1] - GAP))
    pending = iter(picked.movedim(1, 3).contiguous().numpy())
    for i, count in enumerate(widths):
        for j in range(count):
            tile = Image.fromarray(next(pending))
            tile = tile if tile.size == size else tile.resize(size, Image.Resampling.BOX)
            sheet.paste(tile, (j * step[0], i * step[1]))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
