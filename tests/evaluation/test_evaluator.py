import pytest
import torch

import coterie
from coterie.engine import malloc as allocator
from coterie.evaluation.evaluator import drawn_to_models, plane


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


def test_the_plane_of_very_many_rows_is_that_of_the_singular_vectors():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(10_000, 6, generator=generator) * torch.tensor([9.0, 1, 5, 1, 2, 1]) + 3
    left, scale, _ = torch.linalg.svd((rows - rows.mean(0)).double(), full_matrices=False)
    expected = left[:, :2] * scale[:2]
    found = plane(rows)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", [coterie.FedAvg(), coterie.Local()])
def test_memory_is_given_back_while_clients_are_mapped_and_their_models_formed(
    algorithm, monkeypatch
):
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(algorithm, federation, task, rounds=1, chunk=1)
    times = []
    monkeypatch.setattr(allocator, "give_back", lambda: times.append(1))
    run.evaluator.map(run.serving)
    assert len(times) == 2  # once in eight chunks
    run.evaluator.own_models(run.serving)
    assert len(times) == (2 if isinstance(algorithm, coterie.FedAvg) else 4)
