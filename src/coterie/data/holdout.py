"""A validation part: samples that clients hold out of those they train on.

Each client holds out the same share, `stratified`: its samples are put in the order of their
targets, those of one class in random order, and every so manyth is held out, beginning at a random
place. So each class, and of real targets each range, has its share in both parts to within one
sample, and a client with very few samples holds out none or one of them by chance. Where samples
are of groups, or have a time, those of one group are held out together, or the last ones are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.samples import Stored
from coterie.data.federation import Federation, Samples
from coterie.data.tables.splits import TEST, grouped_parts, latest_parts


def hold_out(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with a `share` of each client's training samples in a validation part.

    Chance goes by the seed and the client's name, or its number where it has none. A validation
    part that the federation has already stays what it is.

    >>> from coterie.data.federations.rotated import RotatedDigits
    >>> held = hold_out(RotatedDigits(clients=8).build(0), 0.25, seed=0)
    >>> held.train.sizes[:3].tolist(), held.validation.sizes[:3].tolist()
    ([539, 539, 539], [179, 179, 179])
    """
    if not share or federation.validation is not None:
        return federation
    train = federation.train
    kept, held = [], []
    for name, begin, end in client_bounds(federation):
        if federation.group is not None:
            out = held_out_groups(federation.group[begin:end], share, seed, name)
        elif federation.time is not None:
            out = latest_rows(federation.time[begin:end], share)
        else:
            key = stratum_keys(train.y[begin:end]) if federation.labelled else None
            out = held_out_rows(end - begin, share, key, seeds.generator(seed, "validation", name))
        rows = torch.arange(begin, end)
        kept.append(rows[~out])
        held.append(rows[out])
    parts = (Samples.select(train.x, train.y, each) for each in (kept, held))
    return replace(federation, train=next(parts), validation=next(parts), time=None, group=None)


def client_bounds(federation: Federation) -> list[tuple[str | int, int, int]]:
    """Each client's name or number, and where its training samples begin and end."""
    ends = federation.train.offsets.tolist()
    names = federation.clients or range(len(federation))
    return list(zip(names, ends, ends[1:], strict=False))


def held_out_groups(group: Tensor, share: float, seed: int, name: str | int) -> Tensor:
    """Which samples of groups [n] are held out, [n]; never all of them."""
    if len(group) < 2:
        return torch.zeros(len(group), dtype=torch.bool)
    return torch.from_numpy(grouped_parts(group.numpy(), 1 - share, seed, str(name)) == TEST)


def latest_rows(time: Tensor, share: float) -> Tensor:
    """Which samples of times [n] are held out, the last ones, [n]; never all of them."""
    if len(time) < 2:
        return torch.zeros(len(time), dtype=torch.bool)
    return torch.from_numpy(latest_parts(time.numpy(), 1 - share) == TEST)


def stratum_keys(y: Stored) -> Tensor | None:
    """What samples are put in order by, [n]; None where targets have no order."""
    return y if isinstance(y, Tensor) and y.dim() == 1 else None


def held_out_rows(
    count: int, share: float, key: Tensor | None, generator: torch.Generator
) -> Tensor:
    """Which of `count` samples with keys [n] are held out, a mask [n]; never all of them.

    >>> y = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> y[held_out_rows(12, 0.25, y, torch.Generator().manual_seed(0))].tolist()
    [0, 0, 1]
    """
    order = torch.randperm(count, generator=generator)
    if key is not None:
        order = order[key[order].argsort(stable=True)]
    start = torch.rand((), generator=generator, dtype=torch.float64)
    passed = (torch.arange(count + 1) * share + start).floor()
    out = torch.zeros(count, dtype=torch.bool)
    out[order] = passed.diff() > 0
    if bool(out.all()):
        out[order[0]] = False
    return out
