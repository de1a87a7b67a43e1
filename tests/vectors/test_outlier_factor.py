import numpy as np
import pytest
import torch
from sklearn.neighbors import LocalOutlierFactor

from coterie.vectors.outlier_factor import distances_between, outlier_factors


def cloud(n=40, p=300, seed=0):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed))


def test_factors_on_a_line_by_hand():
    # The distance to the second neighbour is 2, 1, 1, 2 and 98. 0 reaches 1 and 2 in max(1, 1) and
    # max(1, 2): density 2/3, as have 1, 2 and 3. 100 reaches 3 and 2 in 97 and 98: density 2/195.
    line = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
    assert outlier_factors(line, 2).tolist() == pytest.approx([1, 1, 1, 1, (2 / 3) / (2 / 195)])


@pytest.mark.parametrize("neighbours", [1, 5, 20, 39])
def test_factors_are_those_of_scikit_learn(neighbours):
    points = cloud()
    points[:3] *= 4
    theirs = LocalOutlierFactor(n_neighbors=neighbours).fit(points.double().numpy())
    expected = -theirs.negative_outlier_factor_
    np.testing.assert_allclose(outlier_factors(points, neighbours), expected, rtol=1e-9)


def test_neighbours_are_half_of_the_points_unless_said():
    points = cloud(n=30)
    assert torch.equal(outlier_factors(points), outlier_factors(points, 15))
    assert torch.equal(outlier_factors(points, 99), outlier_factors(points, 29))


def test_a_huge_point_does_not_hide_the_distances_of_the_others():
    points = torch.cat([cloud(n=20, p=50) * 1e-3, torch.full((1, 50), 1e15)]).double()
    apart = distances_between(points)[:20, :20]
    torch.testing.assert_close(apart, torch.cdist(points[:20], points[:20]), rtol=1e-6, atol=0)


def test_models_near_to_each_other_keep_their_digits():
    """In single precision the distances of models of one start would be rounding errors."""
    near = (100 + torch.randn(10, 2000).double() * 1e-4).float()
    exact = torch.cdist(near.double(), near.double(), compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(distances_between(near), exact, rtol=1e-6, atol=1e-12)


def test_points_that_are_not_finite_are_outliers_and_hide_nobody():
    points = cloud(n=12)
    broken = torch.cat([points, torch.full((1, 300), torch.nan), torch.full((1, 300), torch.inf)])
    factors = outlier_factors(broken, 4)
    assert factors[12:].tolist() == [torch.inf, torch.inf]
    assert torch.equal(factors[:12], outlier_factors(points, 4))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_few_points_are_no_outliers(count):
    assert outlier_factors(cloud(n=count), 5).tolist() == pytest.approx([1.0] * count, abs=0.2)


def test_equal_points_are_no_outliers():
    assert outlier_factors(torch.ones(10, 3), 4).tolist() == pytest.approx([1.0] * 10)
