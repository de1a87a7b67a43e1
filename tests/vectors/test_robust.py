import pytest
import torch

from coterie.vectors import robust

# Five clients near (1, 1) and two adversaries, so that n = 7 and f = 2.
HONEST = torch.tensor([[1.0, 1.0], [1.5, 0.5], [0.5, 1.5], [1.0, 2.0], [2.0, 1.0]])
WRONG = torch.tensor([[900.0, -900.0], [-800.0, 700.0]])
ROWS = torch.cat([WRONG[:1], HONEST, WRONG[1:]])


def random_rows(n=11, d=2500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator) * torch.rand(n, 1, generator=generator) * 5


def test_the_median_of_every_coordinate():
    # First coordinates -800, .5, 1, 1, 1.5, 2, 900; second -900, .5, 1, 1, 1.5, 2, 700.
    assert robust.coordinate_median(ROWS).tolist() == [1.0, 1.0]
    assert robust.coordinate_median(torch.tensor([[1.0], [2.0], [5.0], [99.0]])).item() == 3.5


def test_the_trimmed_mean_leaves_out_f_at_each_end():
    # Without the two smallest and largest: 1, 1, 1.5 and 1, 1, 1.5.
    assert robust.coordinate_trimmed_mean(ROWS, 2).tolist() == pytest.approx([3.5 / 3, 3.5 / 3])
    assert torch.allclose(robust.coordinate_trimmed_mean(ROWS, 0), ROWS.mean(0))
    with pytest.raises(AssertionError, match="at most 3 can be trimmed"):
        robust.coordinate_trimmed_mean(ROWS, 4)


def test_columns_are_sorted_in_blocks_as_they_are_whole():
    rows = random_rows()
    inner = rows.sort(0).values[3:8].mean(0)
    assert torch.allclose(robust.coordinate_trimmed_mean(rows, 3), inner, atol=1e-6)


def test_groups_are_what_they_are_alone_with_any_number_of_threads():
    rows = random_rows(30, 3000)
    kept, values = rows.clone(), rows.numpy()
    groups = [robust.RowGroup(0, 11, 5), robust.RowGroup(11, 30, 4)]
    apart = torch.stack(
        [robust.coordinate_median(rows[:11]), rows[11:].sort(0).values[4:-4].mean(0)]
    )
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = robust.grouped_trimmed_means(lambda columns: values[:, columns], groups, 3000)
            assert torch.allclose(found.float(), apart, atol=1e-6)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(rows, kept)
    # A single row or column is in order already, and still must not be sorted in place.
    column = rows[:, :1].clone()
    robust.coordinate_median(column)
    assert torch.equal(column, kept[:, :1])


def test_krum_takes_the_row_with_the_nearest_neighbours():
    # Squared distances to the 4 nearest others: (1, 1): .5 + .5 + 1 + 1 = 3; (1.5, .5): .5 + .5 + 2
    # + 2.5 = 5.5, and (.5, 1.5) the same; (1, 2): 1 + 2 + .5 + 2.5 = 6, and (2, 1) the same.
    assert robust.krum(ROWS, 2).tolist() == [1.0, 1.0]
    scores = robust.krum_scores(robust.pairwise_squares(ROWS), 2)
    assert scores[1:6].tolist() == pytest.approx([3.0, 5.5, 5.5, 6.0, 6.0])


def test_multi_krum_is_the_mean_of_the_rows_that_krum_likes():
    assert torch.allclose(robust.multi_krum(ROWS, 2), HONEST.mean(0))


def test_bulyan_withstands_what_it_should():
    # n = 7 and f = 1: Krum picks five of the rows one by one, of which three values count.
    rows = torch.cat([HONEST, torch.tensor([[1.2, 1.2]]), WRONG[:1]])
    found = robust.bulyan(rows, 1)
    assert found.tolist() == pytest.approx([1.0, 1.0], abs=0.3)
    with pytest.raises(AssertionError, match="cannot withstand 2"):
        robust.bulyan(ROWS, 2)


def test_bulyan_on_a_line():
    # 0, 1, 2, 3, 4, 5, 100 and f = 1. Krum's scores (5 nearest) favour 2 and 3, the first of equals
    # is taken: 2; then 3 of 0 1 3 4 5 100 (4 nearest: 9+4+1+4 = 18; of 4: 16+9+1+1 = 27);
    # of 0 1 4 5 100 (3 nearest): 1: 1+9+16 = 26, 4: 16+9+1 = 26, so 1; of 0 4 5 100 (2 nearest):
    # 4: 16+1 = 17; of 0 5 100 (1 nearest): 0. Picked 2 3 1 4 0, median 2, the three nearest
    # 1, 2, 3: mean 2.
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [100.0]])
    assert robust.bulyan(rows, 1).tolist() == [2.0]


def test_the_geometric_median_has_the_least_sum_of_distances():
    rows = random_rows(9, 40).double()
    rows[0] *= 1e4
    found = robust.geometric_median(rows)

    def total(point):
        return float((rows - point).norm(dim=1).sum())

    for step in range(20):
        nearby = found + 1e-2 * torch.randn(40, generator=torch.Generator().manual_seed(step))
        assert total(found) <= total(nearby)
    # Three of four equal rows are it, wherever the fourth is.
    same = torch.tensor([[2.0, 3.0]] * 3 + [[1e6, -1e6]])
    assert robust.geometric_median(same).tolist() == pytest.approx([2.0, 3.0], abs=1e-3)


def test_clipping_shortens_long_rows_only():
    # Lengths 5, 10, 500: the last is shortened to 10, in its direction.
    rows = torch.tensor([[3.0, 4.0], [6.0, 8.0], [-300.0, -400.0]])
    assert robust.clipped_mean(rows).tolist() == pytest.approx([1.0, 4.0 / 3])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "rule",
    [
        robust.coordinate_median,
        lambda rows: robust.coordinate_trimmed_mean(rows, 2),
        lambda rows: robust.krum(rows, 2),
        lambda rows: robust.multi_krum(rows, 2),
        lambda rows: robust.bulyan(rows, 2),
        robust.geometric_median,
        robust.clipped_mean,
    ],
)
def test_rows_that_are_not_finite_are_a_minority_like_any_other(rule, bad):
    rows = random_rows(12, 30)
    rows[3] = bad
    rows[7, 5] = bad
    found = rule(rows)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 10


def test_no_minority_moves_them_far():
    clean = random_rows(15, 200)
    rules = {
        "median": robust.coordinate_median,
        "trimmed": lambda rows: robust.coordinate_trimmed_mean(rows, 3),
        "krum": lambda rows: robust.krum(rows, 3),
        "multi-krum": lambda rows: robust.multi_krum(rows, 3),
        "bulyan": lambda rows: robust.bulyan(rows, 3),
        "geometric": robust.geometric_median,
        "clip": robust.clipped_mean,
    }
    attacked = torch.cat([clean[:12], 1e5 * torch.ones(3, 200)])
    for name, rule in rules.items():
        assert float((rule(attacked) - rule(clean)).norm()) < 80, name
    assert float((attacked.mean(0) - clean.mean(0)).norm()) > 1e5


def test_each_equals_byzfl():
    byzfl = pytest.importorskip("byzfl")
    for seed in range(5):
        rows = random_rows(11, 60, seed).double()
        pairs = [
            (robust.coordinate_median(rows), byzfl.Median()(rows)),
            (robust.coordinate_trimmed_mean(rows, 3), byzfl.TrMean(f=3)(rows)),
            (robust.krum(rows, 3), byzfl.Krum(f=3)(rows)),
            (robust.multi_krum(rows, 3), byzfl.MultiKrum(f=3)(rows)),
        ]
        for mine, theirs in pairs:
            assert torch.allclose(mine, theirs.double(), atol=1e-6)
        theirs = byzfl.GeometricMedian(nu=1e-9, T=1000)(rows)
        assert torch.allclose(robust.geometric_median(rows), theirs.double(), atol=1e-3)
