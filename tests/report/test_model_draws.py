"""Draws from the models of clusters."""

import torch

from coterie import Centre, Federation
from coterie.networks.flows import LinearFlowModule
from coterie.report.model_draws import VECTORS, draw_from_models
from coterie.report.sample_sheets import COLUMNS, ROWS
from coterie.tasks.density import Density


def federation(*shape):
    return Federation.from_clients([(torch.zeros(3, *shape), torch.zeros(3).long())])


def test_draws_are_in_the_units_of_the_samples():
    # z = u and u = x / 10, so that samples have standard deviation 10, whatever the seed.
    task = Density(LinearFlowModule([2]), scale=10.0)
    models = task.draw(torch.Generator()).expand(2, -1)
    for seed in range(3):
        draws = draw_from_models(task, models, federation(2), seed)
        assert [draws[j].shape for j in draws] == [(VECTORS, 2)] * 2
        assert 8 < draws[0].std() < 12
        assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draw_from_models(task, models, federation(2), 2)[0])


def test_of_images_there_are_as_many_as_fit_a_sheet():
    task = Density(LinearFlowModule([8, 8]))
    draws = draw_from_models(task, task.draw(torch.Generator())[None], federation(8, 8), 0)
    assert draws[0].shape == (ROWS * COLUMNS, 8, 8)


def test_models_that_diverged_or_have_no_inverse_are_left_out():
    task = Density(LinearFlowModule([2]))
    good = task.draw(torch.Generator())
    models = torch.stack([torch.full_like(good, torch.nan), torch.zeros_like(good), good])
    assert list(draw_from_models(task, models, federation(2), 0)) == [2]


def test_tasks_that_cannot_be_drawn_from_have_no_draws():
    assert draw_from_models(Centre(2), torch.zeros(2, 2), federation(2), 0) == {}

    class Given(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x @ self.w

    task = Density(Given())
    assert draw_from_models(task, torch.zeros(2, 2), federation(2), 0) == {}
