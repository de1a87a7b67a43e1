from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.core import seeds
from coterie.data.client_orders import ClientDraws
from coterie.data.holdout import held_out_rows, hold_out
from tests.tasks.taggers import tagging_federation


def client(size, classes=3, seed=0):
    """Features that name each row, and labels of uneven classes."""
    generator = seeds.generator(seed, "rows", size)
    y = torch.randint(classes, (size,), generator=generator).clamp_max(classes - 1)
    return torch.arange(float(size))[:, None], y


def test_each_class_has_its_share_in_both_parts_to_within_a_row():
    x, y = client(200)
    held = hold_out(Federation.from_clients([(x, y)]), 0.25, seed=3)
    counts = torch.bincount(y, minlength=3) * 0.25
    found = torch.bincount(held.validation.y, minlength=3)
    assert bool(((found - counts).abs() < 1).all()), (found, counts)
    assert abs(int(found.sum()) - 50) <= 1


def test_real_targets_have_their_ranges_in_both_parts():
    y = torch.randn(400, generator=seeds.generator(0, "targets"))
    held = hold_out(Federation.from_clients([(y[:, None], y)]), 0.2, seed=0)
    for low, high in ((-9.0, -1.0), (-1.0, 0.0), (0.0, 1.0), (1.0, 9.0)):
        whole, out = (int(((z > low) & (z <= high)).sum()) for z in (y, held.validation.y))
        assert abs(out - 0.2 * whole) < 2


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_no_row_is_lost_and_none_is_in_both_parts(share):
    sizes = [1, 2, 3, 8, 50]
    whole = Federation.from_clients([client(size) for size in sizes])
    held = hold_out(whole, share, seed=1)
    for i, size in enumerate(sizes):
        kept, out = (part.client(i)[0].flatten() for part in (held.train, held.validation))
        assert sorted(torch.cat([kept, out]).tolist()) == list(range(size))
        assert len(kept) >= 1
        assert bool((kept.diff() > 0).all())


def test_small_clients_hold_out_a_row_as_often_as_their_share_says():
    whole = Federation.from_clients([client(3)] * 400)
    out = hold_out(whole, 0.2, seed=0).validation.sizes
    assert out.unique().tolist() == [0, 1]
    assert abs(float(out.double().mean()) - 0.6) < 0.1


def test_what_a_client_holds_out_goes_by_its_name_and_the_seed():
    data = Federation.from_clients([client(40), client(40, seed=5)])
    one = replace(data, clients=("a", "b"))
    other = replace(Federation.from_clients([client(40, seed=5), client(40)]), clients=("b", "a"))
    held, swapped = hold_out(one, 0.2, seed=0), hold_out(other, 0.2, seed=0)
    assert torch.equal(held.validation.client(0)[0], swapped.validation.client(1)[0])
    another = hold_out(one, 0.2, seed=1)
    assert not torch.equal(held.validation.client(0)[0], another.validation.client(0)[0])


def test_a_federation_that_has_a_validation_part_keeps_it():
    data = Federation.from_clients([client(10)], validation=[client(4)])
    assert hold_out(data, 0.0, seed=0) is data
    assert hold_out(data, 0.2, seed=0) is data


def test_sequences_are_held_out_whole():
    data = tagging_federation([5, 9])
    held = hold_out(data, 0.4, seed=0)
    assert len(held.train.y) + len(held.validation.y) == len(data.train.y)
    assert len(held.train) == len(held.validation) == len(data)


def test_not_all_rows_are_held_out_whatever_the_chance():
    for seed in range(50):
        out = held_out_rows(ClientDraws(np.array([2]), ["a"], seed), 0.99, None)
        assert out.sum() == 1


def one_client_at_a_time(sizes, names, seed, share, key):
    """The same, written out for one client after another."""
    parts = []
    for size, name, own in zip(sizes, names, key.split(sizes), strict=True):
        generator = seeds.generator(seed, "validation", name)
        order = torch.randperm(size, generator=generator)
        order = order[own[order].argsort(stable=True)]
        start = torch.rand((), generator=generator, dtype=torch.float64)
        passed = (torch.arange(size + 1) * share + start).floor()
        out = torch.zeros(size, dtype=torch.bool)
        out[order] = passed.diff() > 0
        if bool(out.all()):
            out[order[0]] = False
        parts.append(out)
    return torch.cat(parts)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_all_clients_together_hold_out_what_each_would_alone(share):
    generator = torch.Generator().manual_seed(int(1000 * share))
    for seed in range(5):
        sizes = torch.randint(1, 30, (200,), generator=generator).tolist()
        names = [f"c{i}" for i in range(200)] if seed % 2 else range(200)
        classes = torch.randint(0, 3, (sum(sizes),), generator=generator)
        for key in (classes, torch.randn(sum(sizes), generator=generator), classes > 0):
            draws = ClientDraws(np.array(sizes), names, seed)
            alone = one_client_at_a_time(sizes, names, seed, share, key)
            assert torch.equal(held_out_rows(draws, share, key), alone)


def test_rows_of_a_group_are_held_out_together():
    x = torch.arange(60.0)[:, None]
    group = torch.arange(60) // 3  # the first client has groups 0 to 9, the second 10 to 19
    pairs = [(x[:30], torch.zeros(30)), (x[30:], torch.zeros(30))]
    whole = replace(Federation.from_clients(pairs), group=group)
    held = hold_out(whole, 0.2, seed=0)
    assert held.group is None
    for i in range(2):
        kept, out = (
            {int(v) // 3 for v in part.client(i)[0]} for part in (held.train, held.validation)
        )
        assert not kept & out
        assert len(kept | out) == 10
        assert len(out) == 2


def test_the_last_rows_by_time_are_held_out():
    time = torch.tensor([3.0, 1.0, 2.0, 0.0, 4.0, 9.0])
    pairs = [(time[:5, None], torch.zeros(5)), (time[5:, None], torch.zeros(1))]
    held = hold_out(replace(Federation.from_clients(pairs), time=time), 0.4, seed=0)
    assert held.validation.x.flatten().tolist() == [3, 4]
    assert held.train.sizes.tolist() == [3, 1]
