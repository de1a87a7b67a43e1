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

from coterie.core.samples import Stored
from coterie.data.client_orders import ClientDraws
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
    out = torch.zeros(len(train.y), dtype=torch.bool)
    if federation.group is None and federation.time is None:
        key = stratum_keys(train.y) if federation.labelled else None
        names = federation.clients or range(len(federation))
        out = held_out_rows(ClientDraws(train.sizes.numpy(), names, seed), share, key)
    else:
        for name, begin, end in client_bounds(federation):
            if federation.group is not None:
                out[begin:end] = held_out_groups(federation.group[begin:end], share, seed, name)
            elif federation.time is not None:
                out[begin:end] = latest_rows(federation.time[begin:end], share)
    kept, held = (chosen_samples(train, each) for each in (~out, out))
    return replace(federation, train=kept, validation=held, time=None, group=None)


def chosen_samples(samples: Samples, chosen: Tensor) -> Samples:
    """The samples that a mask [n] chooses, client after client."""
    before = torch.cat([torch.zeros(1, dtype=torch.long), chosen.long().cumsum(0)])
    rows = chosen.nonzero()[:, 0]
    return Samples(samples.x[rows], samples.y[rows], before[samples.offsets])


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


def held_out_rows(draws: ClientDraws, share: float, key: Tensor | None) -> Tensor:
    """Which samples with keys [n] clients hold out, a mask [n]; never all those of one.

    >>> y = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> y[held_out_rows(ClientDraws(torch.tensor([12]).numpy(), ["a"], 0), 0.25, y)].tolist()
    [0, 0, 1]
    """
    drawn, start = draws.orders("validation", starts=True)
    order = torch.from_numpy(draws.sorted(drawn, key))
    sizes = torch.from_numpy(draws.sizes)
    begin, client = torch.from_numpy(draws.begin), torch.arange(len(sizes))
    # Every client has a place more than samples: the differences between two are what counts.
    owner = client.repeat_interleave(sizes + 1)
    place = torch.arange(len(owner)) - (begin + client)[owner]
    passed = (place * share + start[owner].float()).floor()
    within = place[1:] > 0
    out = torch.zeros(len(order), dtype=torch.bool)
    out[order] = (passed.diff() > 0)[within]
    count = torch.zeros_like(sizes).index_add(0, client.repeat_interleave(sizes), out.long())
    out[order[begin[(count == sizes) & (sizes > 0)]]] = False
    return out
