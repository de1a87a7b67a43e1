import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.core.algorithm import Start
from coterie.core.errors import CoterieWarning, SettingError


class Sampler:
    """Remembers which clients were asked for."""

    def __init__(self):
        self.asked = []

    def sample(self, round, at_least):
        self.asked.append((round, at_least))
        return "clients"


def start_with(task, sampler=None, seed=0):
    return Start(sampler or Sampler(), task, 7, seed)


def linear():
    return Regression(lambda: nn.Linear(2, 1))


def test_models_are_independent_draws_that_depend_on_seed_and_attempt_alone():
    models = start_with(linear()).models(3)
    assert models.shape == (3, 3)
    assert len(models.unique(dim=0)) == 3
    assert torch.equal(models, start_with(linear()).models(3))
    assert not torch.equal(models, start_with(linear(), seed=1).models(3))
    assert not torch.equal(models, start_with(linear()).models(3, attempt=1))


def test_the_first_models_are_the_same_however_many_are_drawn():
    start = start_with(linear())
    assert torch.equal(start.models(3)[:1], start.models(1))


def test_a_draw_that_coincides_by_chance_is_made_again():
    # Two of the three draws are 1; the second 1 is drawn anew.
    draws = iter([1.0, 1.0, 2.0])
    task = Regression(
        nn.Linear(1, 1, bias=False), draw=lambda generator: torch.tensor([next(draws)])
    )
    assert start_with(task).models(2).flatten().tolist() == [1, 2]


def test_draws_that_always_coincide_are_refused():
    task = Regression(nn.Linear(1, 1, bias=False), draw=lambda generator: torch.ones(1))
    with pytest.raises(SettingError, match="draws of the starting model are identical"):
        start_with(task).models(2)


def test_a_layer_that_starts_alike_in_all_models_is_told_of():
    fixed = torch.tensor([[1.0, 2.0]])

    def draw(generator):
        return torch.cat([fixed.flatten(), torch.rand(1, generator=generator)])

    with pytest.warns(CoterieWarning, match="weight cannot be drawn anew"):
        start_with(Regression(nn.Linear(2, 1), draw=draw)).models(2)


def test_clients_of_the_start_come_from_the_sampler():
    sampler = Sampler()
    start = start_with(linear(), sampler)
    assert start.sample(2) == "clients"
    start.all_clients()
    assert sampler.asked == [(2, 1), (0, 7)]
