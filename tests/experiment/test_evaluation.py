import torch

from coterie.experiment.evaluation import drawn_to_models, plane


def test_four_equally_distant_clusters_lie_apart_on_the_map():
    losses = 1 - torch.eye(4).repeat(5, 1).double()
    losses += 0.05 * torch.rand(losses.shape, generator=torch.Generator().manual_seed(0))
    points = drawn_to_models(losses).view(5, 4, 2)
    centres = points.mean(0)
    spread = (points - centres).norm(dim=-1).max()
    apart = torch.pdist(centres).min()
    assert apart > 4 * spread


def test_a_client_that_a_diverged_model_cannot_serve_is_on_the_map_all_the_same():
    losses = torch.tensor([[0.1, 1.0, torch.inf], [1.0, 0.2, torch.inf], [0.5, 0.4, torch.inf]])
    assert torch.isfinite(drawn_to_models(losses.double())).all()


def test_one_client_and_equal_clients_have_a_place():
    assert plane(torch.ones(1, 3).double()).tolist() == [[0.0, 0.0]]
    assert plane(torch.ones(5, 1).double()).abs().max() == 0


def test_distances_in_the_plane_are_kept():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]).double()
    torch.testing.assert_close(torch.pdist(plane(rows)), torch.pdist(rows))
