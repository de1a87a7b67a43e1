import torch

from coterie.core.batches import batches_of_clients, shuffled_batches


def test_batches_of_a_pass_hold_every_row_once():
    rows = shuffled_batches(7, 3, 6, torch.Generator().manual_seed(0))
    for one_pass in (rows[:3], rows[3:]):
        assert sorted(one_pass[one_pass >= 0].tolist()) == list(range(7))
    assert rows[0].tolist() != rows[3].tolist()


def test_batches_that_hold_all_samples_are_none():
    ids = torch.arange(2)
    assert batches_of_clients([3, 5], 0, [2, 2], (0,), ids) is None
    assert batches_of_clients([3, 5], 5, [2, 2], (0,), ids) is None
    some = batches_of_clients([3, 5], 4, [1, 2], (0,), ids)
    assert [rows.shape for rows in some] == [(1, 4), (2, 4)]
    assert sorted(some[0][0].tolist()) == [-1, 0, 1, 2]


def test_batches_depend_on_the_client_and_not_on_its_company():
    together = batches_of_clients([9, 9, 9], 4, [3, 3, 3], (0, "a"), torch.tensor([4, 7, 9]))
    (alone,) = batches_of_clients([9], 4, [3], (0, "a"), torch.tensor([7]))
    assert torch.equal(together[1], alone)
    assert not torch.equal(together[0], alone)
