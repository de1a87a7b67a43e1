import numpy as np
import pytest
import torch

from coterie.tensors.lazy import Lazy, add_cluster_sums
from coterie.vectors import moments
from coterie.vectors.moments import SecondMoments, weighted_products, whitening


def clients(seed, sizes=(5, 0, 9), features=3, k=2, hard=False):
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(n, features, generator=generator) for n in sizes]
    weights = [torch.rand(n, k, generator=generator) for n in sizes]
    if hard:
        weights = [(w == w.max(1, keepdim=True).values).float() for w in weights]
    return points, weights


def test_second_moments_by_hand():
    # Client 0 has x = 1 and 3 in cluster 0: mean of squares 5; nothing in cluster 1.
    points = [torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0]])]
    weights = [torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.5, 0.5]])]
    found = Lazy(SecondMoments(points, weights))
    assert found.shape == (2, 2, 1)
    assert found.tolist() == [[[5.0], [0.0]], [[4.0], [4.0]]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [2, 4096])
@pytest.mark.parametrize("hard", [True, False])
def test_sums_over_clients_are_those_of_what_is_never_formed(seed, block, hard, monkeypatch):
    monkeypatch.setattr(moments, "BLOCK", block)
    formula = SecondMoments(*clients(seed, hard=hard))
    member = torch.rand(2, 3, generator=torch.Generator().manual_seed(seed)).double()
    origin = torch.randn(2, 9).double()
    for near in (None, origin):
        lazy = Lazy(formula)
        sums = torch.ones(2, 9).double()
        lazy.formula.add_to(sums, member, near)
        assert lazy.formed is None
        own = formula.dense().double() - (0 if near is None else near)
        expected = 1 + torch.einsum("km,mkd->kd", member, own)
        if near is not None:  # of a set without samples the second moments are 0
            torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-6)


def test_weighted_products_are_those_of_numpy():
    x, w = torch.randn(50, 4).double(), torch.rand(50, 3).double()
    found = weighted_products(x, w).view(3, 4, 4).numpy()
    for j in range(3):
        np.testing.assert_allclose(found[j], (x.numpy() * w[:, j, None].numpy()).T @ x.numpy())


@pytest.mark.parametrize("features", [1, 2, 7])
def test_whitened_samples_have_mean_zero_and_covariance_one(features):
    x = torch.randn(60, features).double() @ torch.randn(features, features).double() + 5
    mean, square = x.mean(0), x.T @ x / len(x)
    A, c = whitening(mean[None], square[None], shrinkage=0.0, floor=1e-9)
    z = x @ A[0].T + c[0]
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-8)
    np.testing.assert_allclose(np.cov(z.numpy().T, bias=True), np.eye(features), atol=1e-7)
    torch.testing.assert_close(A[0], A[0].T)


def test_shrinkage_and_floor_by_hand():
    # Variances 8 and 0, mean variance 4. Half shrunk: 6 and 2. Not at all: 8, and the floor 1.
    mean, square = torch.zeros(1, 2).double(), torch.diag(torch.tensor([8.0, 0.0]))[None].double()
    for shrinkage, floor, variances in ((0.5, 1e-6, [6, 2]), (0.0, 1.0, [8, 1]), (1.0, 0, [4, 4])):
        A, _ = whitening(mean, square, shrinkage, floor)
        assert A[0].diagonal().tolist() == pytest.approx([v**-0.5 for v in variances])
    A, c = whitening(mean + 3, torch.full((1, 2, 2), 9.0).double(), 0.0, 1e-6)
    assert bool(A.isfinite().all() & c.isfinite().all()), "samples that are all alike"


def test_lazy_sums_are_taken_by_cluster_sums():
    formula = SecondMoments(*clients(0))
    lazy, sums = Lazy(formula), torch.zeros(2, 9).double()
    add_cluster_sums(sums, torch.ones(2, 3).double(), lazy)
    assert lazy.formed is None
    torch.testing.assert_close(sums, formula.dense().double().sum(0), rtol=1e-6, atol=1e-6)
