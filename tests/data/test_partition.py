import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import SettingError
from coterie.data import partition

LABELS = torch.arange(200) % 10


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 20), seed=st.integers(0, 99))
def test_no_row_is_dealt_twice_and_none_is_kept_back(clients, seed):
    for parts in (
        partition.iid(LABELS, clients, generator(seed)),
        partition.dirichlet(LABELS, clients, 5.0, generator(seed)),
        partition.shards(LABELS, clients, 2, generator(seed)),
    ):
        assert len(parts) == clients
        assert sorted(torch.cat(parts).tolist()) == list(range(200))


def test_the_generator_decides():
    for split in (partition.iid, lambda *a: partition.dirichlet(a[0], a[1], 1.0, a[2])):
        one, again, other = (split(LABELS, 4, generator(s)) for s in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_small_alpha_makes_clients_differ_more():
    def largest_share(alpha):
        parts = partition.dirichlet(LABELS.repeat(10), 10, alpha, generator())
        shares = [torch.bincount(LABELS.repeat(10)[p]).max().item() / len(p) for p in parts]
        return sum(shares) / 10

    assert largest_share(0.1) > 0.4
    assert largest_share(100.0) < 0.2


def test_two_shards_are_about_two_classes():
    parts = partition.shards(LABELS, 10, 2, generator())
    assert all(len(set(LABELS[part].tolist())) <= 2 for part in parts)


def test_too_few_samples_are_refused():
    with pytest.raises(SettingError, match="5 samples are too few for the clients, which need 9"):
        partition.iid(torch.zeros(5), 9, generator())
    with pytest.raises(SettingError, match=r"in 100 Dirichlet draws with `alpha` 0\.001"):
        partition.dirichlet(LABELS, 50, 0.001, generator())
