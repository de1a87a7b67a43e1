import torch

from coterie.evaluation.client_map import principal_components, radial_coordinates


def test_four_equally_distant_clusters_lie_apart_on_the_map():
    losses = 1 - torch.eye(4).repeat(5, 1).double()
    losses += 0.05 * torch.rand(losses.shape, generator=torch.Generator().manual_seed(0))
    points = radial_coordinates(losses).view(5, 4, 2)
    centres = points.mean(0)
    spread = (points - centres).norm(dim=-1).max()
    apart = torch.pdist(centres).min()
    assert apart > 4 * spread


def test_a_client_that_a_diverged_model_cannot_serve_is_on_the_map_all_the_same():
    losses = torch.tensor([[0.1, 1.0, torch.inf], [1.0, 0.2, torch.inf], [0.5, 0.4, torch.inf]])
    assert torch.isfinite(radial_coordinates(losses.double())).all()


def test_one_client_and_equal_clients_have_a_place():
    assert principal_components(torch.ones(1, 3).double()).tolist() == [[0.0, 0.0]]
    assert principal_components(torch.ones(5, 1).double()).abs().max() == 0


def test_distances_in_the_plane_are_kept():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]).double()
    torch.testing.assert_close(torch.pdist(principal_components(rows)), torch.pdist(rows))


def test_the_plane_of_very_many_rows_is_that_of_the_singular_vectors():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(10_000, 6, generator=generator) * torch.tensor([9.0, 1, 5, 1, 2, 1]) + 3
    left, scale, _ = torch.linalg.svd((rows - rows.mean(0)).double(), full_matrices=False)
    expected = left[:, :2] * scale[:2]
    found = principal_components(rows)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-4, atol=1e-4)
