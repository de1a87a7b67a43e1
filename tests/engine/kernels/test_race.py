import pytest
import torch
from torch import nn

from coterie import Classification
from coterie.engine.kernels import race as races
from coterie.engine.kernels.batched import BatchedKernel
from coterie.engine.kernels.race import find_winners, first_samples, is_close
from coterie.engine.kernels.reference import PerClientKernel
from tests.engine.kernels.cohorts import cohort


class Track:
    """Losses of k models on each of m clients' samples [m, k, n]; who ran to the end is noted."""

    def __init__(self, losses, cut):
        self.losses, self.cut = losses, cut
        self.ran = []

    def finish(self, clients, models, room):
        self.ran += zip(clients.tolist(), models.tolist(), strict=True)
        rest = self.losses[clients, models, self.cut :]
        room[:] = rest[:, None]
        return rest.sum(1)

    def race(self):
        last = torch.empty(len(self.losses), 1, self.losses.shape[2] - self.cut)
        return find_winners(self.losses[:, :, : self.cut].sum(2), last, self.finish), last


def test_the_winner_is_the_model_with_the_lowest_loss():
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 30.0):
        losses = torch.rand(40, 5, 10, generator=generator)
        losses *= 1 + scale * torch.rand(40, 5, 1, generator=generator)
        winner, last = Track(losses, 2).race()
        assert torch.equal(winner, losses.sum(2).argmin(1))
        assert torch.equal(last[:, 0], losses[torch.arange(40), winner, 2:])


def test_losers_do_not_run_to_the_end():
    losses = torch.tensor([[[9.0, 1, 1], [1, 1, 1]], [[1, 1, 1], [9, 1, 1]]])
    track = Track(losses, 1)
    assert track.race()[0].tolist() == [1, 0]
    assert sorted(track.ran) == [(0, 1), (1, 0)]


def test_a_model_that_begins_badly_may_still_win():
    track = Track(torch.tensor([[[1.0, 9, 9], [2, 1, 1], [30, 0, 0]]]), 1)
    assert track.race()[0].tolist() == [1]
    assert sorted(track.ran) == [(0, 0), (0, 1)]


def test_of_equals_the_first_wins_and_a_diverged_model_never():
    assert Track(torch.ones(3, 4, 5), 1).race()[0].tolist() == [0, 0, 0]
    nothing = torch.zeros(1, 2, 5)
    assert Track(nothing, 1).race()[0].tolist() == [0]
    late = torch.ones(1, 3, 5)
    late[0, 0, 4] = torch.nan
    late[0, 1] = torch.inf
    assert Track(late, 1).race()[0].tolist() == [2]
    assert Track(torch.full((1, 2, 5), torch.inf), 1).race()[0].tolist() == [0]


def test_a_fifth_of_the_samples_are_the_first_lap_if_there_are_enough():
    assert first_samples(4) == 0
    assert first_samples(50) == 10


def test_a_race_is_close_if_most_models_would_go_on():
    lap = torch.tensor([[1.0, 4, 4], [2, 1, 4]])
    assert is_close(lap, 0.2)  # on five times as many samples the best may have five times as much
    assert not is_close(lap, 0.5)  # here only one of four others may still win


@pytest.mark.parametrize(("spread", "race"), [(0.01, False), (50.0, True)])
def test_models_race_unless_they_are_close(spread, race, monkeypatch):
    raced, race_of = [], races.race
    monkeypatch.setattr(races, "race", lambda *a: raced.append(1) or race_of(*a))
    task = Classification(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    generator = torch.Generator().manual_seed(0)
    models = spread * torch.randn(3, task.layout.size, generator=generator).double()
    models[0] = 0
    one, two = (
        cohort(task, kernel, [20] * 30, 5, 3, 0) for kernel in (PerClientKernel, BatchedKernel)
    )
    assert torch.equal(two.choose(models)[0], one.loss(models).argmin(1))
    assert bool(raced) is race
