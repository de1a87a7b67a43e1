import pytest
import torch

from coterie.data.principal import add_sums, leading_components, sum_samples


def drawn(seed, n=60, d=7):
    """Samples that differ by far more in some directions than in others, about a mean."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator) * torch.arange(1, d + 1)
    return torch.randn(n, d, generator=generator) @ mix + 10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [[60], [1, 59], [20, 30, 10]])
def test_sums_of_clients_give_the_components_of_pooled_samples(seed, sizes):
    x = drawn(seed)
    found = leading_components(add_sums(map(sum_samples, x.split(sizes))), 3)
    pooled = x.double() - x.double().mean(0)
    _, singular, right = torch.linalg.svd(pooled, full_matrices=False)
    assert torch.allclose(found.mean, x.double().mean(0))
    assert torch.allclose(found.deviation, singular[:3] / len(x) ** 0.5)
    assert torch.allclose(
        (found.directions.T @ right[:3].T).abs(), torch.eye(3).double(), atol=1e-8
    )


@pytest.mark.parametrize("seed", range(3))
def test_projected_samples_have_mean_variance_one_or_each_of_them(seed):
    x = drawn(seed)
    found = leading_components(sum_samples(x), 4)
    plain, white = found.project(x), found.project(x, whiten=True)
    assert plain.dtype == white.dtype == torch.float32
    assert torch.allclose(plain.mean(0), torch.zeros(4), atol=1e-5)
    variance = plain.var(0, correction=0)
    assert variance.mean().item() == pytest.approx(1, rel=1e-4)
    assert (variance.diff() < 0).all()
    assert torch.allclose(white.T @ white / len(x), torch.eye(4), atol=1e-4)
    assert torch.allclose(plain / plain.std(0), white / white.std(0), atol=1e-4)


def test_directions_in_which_nothing_differs_stay_zero():
    x = drawn(0, d=2) @ torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    found = leading_components(sum_samples(x), 5)
    assert (found.deviation > 0).tolist() == [True, True, False, False, False]
    white = found.project(x, whiten=True)
    assert white.isfinite().all()
    assert (white[:, 2:] == 0).all()
    assert found.project(x).isfinite().all()
    same = leading_components(sum_samples(torch.full((5, 3), 7.0)), 2)
    assert (same.project(torch.full((5, 3), 7.0)) == 0).all()


def test_the_largest_number_of_a_direction_is_positive():
    for seed in range(5):
        directions = leading_components(sum_samples(drawn(seed)), 7).directions
        assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()
