"""Where in an image two RealNVPs differ: in its black background, or in its strokes.

    python benchmarks/background.py RUN ...

A run is a folder that a line of `coterie reproduce uifca/table2` left: two RealNVPs with
convolutions, one trained on digit 2 and one on digit 3. log p(x) is a sum over pixels, of -z^2 / 2
and of the logarithms s of the scales of all couplings; what the pixels' logits add is the same
under both models. So the loss under the first model less that under the second is cut into a part
of the background, pixels below 0.01, and one of all others. For every run there are the means of
both parts over the images of each digit, in nats, and the share of images that are given their own
model: as it is, with the mean loss under each model subtracted (constant=removed), and by the
strokes alone.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from coterie.data.federations.mnist_clusters import BLACK
from coterie.experiment.folder import RunFolder
from coterie.experiment.plan import plan_again
from coterie.report.text_tables import markdown_table

BATCH = 100  # images at a time
HEAD = ["run", "digit", "background", "strokes", "accuracy", "constant removed", "strokes alone"]


def pixel_losses(flow: Any, x: Tensor) -> Tensor:
    """What each pixel of images [n, rows, columns] adds to their loss, [n, pixels].

    What all models add alike is left out.
    """
    u, _ = flow.inputs(x)
    assert torch.equal(flow.order, torch.arange(u.shape[1])), "pixels are in their order"
    scales = torch.zeros_like(u)
    for coupling in flow.couplings:
        s, t = coupling.scale_and_shift(u)
        u, scales = u * s.exp() + t, scales + s
    return u.square() / 2 - scales


def difference_by_part(path: Path) -> tuple[Tensor, Tensor]:
    """Loss under model 0 less that under model 1 of background and strokes, [n, 2]; labels [n]."""
    plan = plan_again(RunFolder(path).config, [])
    federation, task = plan.prepare(plan.federation.build(plan.settings.seed))
    models = load_file(path / "checkpoint.safetensors")["state.models"][0]
    flows, parts = [copy.deepcopy(task.module).eval() for _ in models], []
    for flow, model in zip(flows, models, strict=True):
        flow.load_state_dict(task.layout.unflatten(model), strict=False)
    with torch.no_grad():
        for x in task.inputs(federation.train.x).split(BATCH):
            one, other = (pixel_losses(flow, x) for flow in flows)
            gap, black = one - other, x.flatten(1) < BLACK
            parts.append(torch.stack([(gap * black).sum(1), (gap * ~black).sum(1)], 1))
    return torch.cat(parts), federation.train.y


def share_right(gap: Tensor, label: Tensor) -> float:
    """The share of images whose own model has the lower loss."""
    return float(((gap > 0).long() == label).double().mean())


def main(paths: list[Path]) -> None:
    rows = []
    for path in paths:
        parts, label = difference_by_part(path)
        gap = parts.sum(1)
        shares = [share_right(each, label) for each in (gap, gap - gap.mean(), parts[:, 1])]
        for digit in (0, 1):
            means = parts[label == digit].mean(0).tolist()
            told = [f"{100 * share:.1f}" for share in shares] if digit == 0 else [""] * 3
            rows.append([path.name, str(2 + digit), *(f"{mean:+.1f}" for mean in means), *told])
    print(markdown_table(HEAD, rows))


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
