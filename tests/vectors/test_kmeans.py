import pytest
import torch
from sklearn.cluster import KMeans

from coterie.core import seeds
from coterie.vectors.kmeans import (
    compress,
    draw_far_points,
    kmeans,
    lloyd,
    nearest_centre,
    squared_distances,
    trimmed_centre,
)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def blobs(k=4, each=15, p=6, spread=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    middle = 3 * torch.randn(k, p, generator=generator).repeat_interleave(each, 0)
    return middle + spread * torch.randn(k * each, p, generator=generator)


def test_lloyd_by_hand():
    # From 0 and 1: {0}, {1, 9, 11} -> 0, 7 -> {0, 1}, {9, 11} -> 0.5, 10. Squares .25, .25, 1, 1.
    found = lloyd(column(0, 1, 9, 11), column(0, 1))
    assert found.cluster.tolist() == [0, 0, 1, 1]
    assert found.centres.flatten().tolist() == [0.5, 10.0]
    assert found.spread == pytest.approx(2.5 / 4)


def test_k_means_makes_so_many_iterations_at_most():
    points = blobs(spread=2.0)
    few, many = (kmeans(points, 4, 0, tries=1, iterations=count).spread for count in (1, 100))
    assert many < few


def test_so_many_iterations_and_no_more():
    found = lloyd(column(0, 1, 9, 11), column(0, 1), iterations=1)
    assert found.cluster.tolist() == [0, 1, 1, 1]
    assert found.centres.flatten().tolist() == [0.0, 7.0]


def test_a_centre_that_nobody_is_near_stays():
    found = lloyd(column(0, 1), column(0, 500))
    assert found.centres.flatten().tolist() == [0.5, 500.0]


def test_the_tightest_clustering_is_kept():
    points = blobs(spread=3.0)
    pairs = [
        (kmeans(points, 4, seed=s).spread, kmeans(points, 4, seed=s, tries=1).spread)
        for s in range(10)
    ]
    assert all(best <= first for best, first in pairs)
    assert any(best < first for best, first in pairs)


def test_it_is_as_tight_as_that_of_scikit_learn():
    for spread in (0.3, 3.0):
        points = blobs(spread=spread)
        ours = kmeans(points, 4, seed=0, tries=50).spread
        theirs = KMeans(4, n_init=50, random_state=0).fit(points.numpy()).inertia_ / len(points)
        assert ours == pytest.approx(theirs, rel=0.02)


def test_the_order_of_the_points_does_not_matter():
    points = blobs(spread=3.0).double()
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(1))
    one, two = kmeans(points, 4, seed=7, tries=2), kmeans(points[order], 4, seed=7, tries=2)
    assert torch.equal(one.cluster[order], two.cluster)
    torch.testing.assert_close(one.centres, two.centres)


def test_the_seed_is_used_and_decides_everything():
    points = blobs(spread=3.0)
    one, two = kmeans(points, 4, seed=0, tries=1), kmeans(points, 4, seed=0, tries=1)
    assert torch.equal(one.centres, two.centres)
    others = [kmeans(points, 4, seed=s, tries=1).centres for s in range(1, 5)]
    assert any(not torch.equal(one.centres, other) for other in others)


def test_centres_are_the_means_of_their_members():
    points = blobs(p=200)  # more coordinates than points: found in compressed space
    found = kmeans(points, 4, seed=0)
    for j, centre in enumerate(found.centres):
        torch.testing.assert_close(centre, points[found.cluster == j].mean(0))
    assert found.centres.dtype == points.dtype


def test_points_that_are_all_alike_are_no_trouble():
    found = kmeans(torch.ones(5, 3), 2, seed=0)
    assert found.spread == 0
    assert torch.equal(found.centres[found.cluster], torch.ones(5, 3))


def test_compression_keeps_distances():
    points = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)).double() + 50
    small = compress(points)
    assert small.shape == (7, 7)
    torch.testing.assert_close(squared_distances(small, small), squared_distances(points, points))


def test_plus_plus_takes_points_that_differ():
    points = column(0, 0, 0, 0, 0, 0, 0, 5, 9)
    for seed in range(20):
        taken = draw_far_points(points, 3, seeds.generator(seed))
        assert sorted(taken.flatten().tolist()) == [0.0, 5.0, 9.0]


def test_near_points_far_from_the_origin_are_told_apart():
    # |x|^2 is 1e15 here, of which double precision keeps tenths: the expanded square is lost.
    base = torch.full((1, 1000), 1e6, dtype=torch.float64)
    points = torch.cat([base, base + 1e-4])
    assert squared_distances(base, points)[0].tolist() == pytest.approx([0.0, 1e-5], rel=1e-3)


def test_a_point_that_is_not_finite_has_a_cluster_too():
    points = torch.tensor([[torch.nan], [4.0]])
    assert nearest_centre(points, torch.tensor([[0.0], [5.0]])).tolist() == [0, 1]


def test_trimmed_centre_by_hand():
    # A quarter of four is one at each end, of each coordinate by itself; of three it is none.
    points = torch.tensor([[0.0, 9.0], [1.0, -9.0], [2.0, 1.0], [99.0, 3.0]])
    assert trimmed_centre(points, 0.25).tolist() == [1.5, 2.0]
    assert trimmed_centre(points[:3], 0.25).tolist() == pytest.approx([1.0, 1 / 3])


def test_trimming_holds_centres_against_a_liar():
    honest = column(-0.2, -0.1, 0, 0.1, 0.2, 9.8, 9.9, 10, 10.1, 10.2)
    points = torch.cat([honest, column(25)])
    plain, trimmed = (kmeans(points, 2, seed=0, trim=trim) for trim in (0.0, 0.2))
    far_plain = plain.centres.max().item()
    assert far_plain == pytest.approx(75 / 6)
    # One of six is left out at each end: 9.8 and 25.
    assert trimmed.centres.max().item() == pytest.approx((9.9 + 10 + 10.1 + 10.2) / 4)
