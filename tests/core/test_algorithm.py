from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.core.algorithm import Start, Traits, traits_of
from coterie.core.errors import SettingError
from coterie.registry import resolve
from coterie.shelves import ALGORITHMS


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


def fixed():
    torch.manual_seed(3)
    return nn.Linear(2, 1)


@pytest.mark.parametrize("network", [nn.Linear(2, 1), fixed], ids=["module", "function"])
def test_a_network_that_brings_its_weights_is_one_model(network):
    start = start_with(Regression(network))
    assert start.brings_weights
    assert torch.equal(start.models(1)[0], start.task.layout.flatten(start.task.module))
    assert torch.equal(start.models(3, distinct=False), start.models(1).expand(3, -1))
    with pytest.raises(SettingError, match=r"2 models cannot begin differently .* a function that"):
        start.models(2)


def test_a_function_that_draws_brings_nothing():
    start = start_with(linear())
    assert not start.brings_weights
    assert torch.equal(start.models(3, distinct=False), start.models(3))


def test_models_that_are_given_are_begun_with():
    given = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    start = replace(start_with(linear()), initial=given)
    assert torch.equal(start.models(2), given)
    assert start.brings_weights
    with pytest.raises(SettingError, match="`initial` has 2 models, but the algorithm begins with"):
        start.models(1)


def test_one_model_that_is_given_is_that_of_a_network_that_brings_its_weights():
    start = replace(start_with(linear()), initial=torch.ones(1, 3))
    assert torch.equal(start.models(2, distinct=False), torch.ones(2, 3))
    with pytest.raises(SettingError, match="2 models cannot begin differently"):
        start.models(2)


def test_clients_of_the_start_come_from_the_sampler():
    sampler = Sampler()
    start = start_with(linear(), sampler)
    assert start.sample(2) == "clients"
    start.all_clients()
    assert sampler.asked == [(2, 1), (0, 7)]


def test_the_server_draws_by_seed_and_purpose_before_the_first_round():
    drawn = torch.rand(3, generator=start_with(linear()).generator("noise"))
    assert torch.equal(torch.rand(3, generator=start_with(linear()).generator("noise")), drawn)
    for other in (
        start_with(linear(), seed=1).generator("noise"),
        start_with(linear()).generator("a"),
    ):
        assert not torch.equal(torch.rand(3, generator=other), drawn)


@dataclass(frozen=True)
class BySetting:
    k: int = 2

    @property
    def traits(self):
        return Traits(clusters="k", averages=self.k > 2)


def test_traits_that_settings_decide_are_those_of_the_defaults_where_a_class_is_asked():
    assert traits_of(BySetting) == Traits(clusters="k", averages=False)
    assert traits_of(BySetting(3)) == Traits(clusters="k", averages=True)
    assert traits_of(object) == Traits()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_class_has_the_traits_of_its_instances_by_default(name):
    kind = resolve("algorithm", name)
    assert isinstance(traits_of(kind), Traits)
    assert traits_of(kind) == traits_of(kind())


def test_a_class_whose_traits_cannot_be_known_without_settings_declares_none():
    class Chosen:
        def __init__(self, needed):
            self.needed = needed

        @property
        def traits(self):
            return Traits(clusters=self.needed)

    assert traits_of(Chosen) == Traits()
    assert traits_of(Chosen("p")).clusters == "p"
