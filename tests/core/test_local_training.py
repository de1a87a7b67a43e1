import pytest
import torch

from coterie.core.errors import SettingError
from coterie.core.local_training import GradientSettings, LocalTraining
from tests.algorithms.lines import simulator

# The loss is (w - y)^2 with gradient 2 (w - y), so a step of size 1/4 goes half the way to y.


def cohort(*targets, round=0):
    clients = simulator(list(targets))
    return clients.cohort(clients.ids, round, (0,))


def after(training, start=0.0, target=8, round=0, **options):
    begin = torch.tensor([[start]])
    return training.local_update(cohort(target, round=round), begin, **options).item()


def test_every_step_goes_half_the_way():
    assert after(LocalTraining(lr=0.25, steps=1)) == 4
    assert after(LocalTraining(lr=0.25, steps=3)) == 7


def test_epochs_take_the_place_of_steps():
    assert after(LocalTraining(lr=0.25, steps=9, epochs=2)) == 6  # full batches: 2 steps


def test_the_step_size_decays_with_the_cohorts_round_or_another():
    training = LocalTraining(lr=0.25, steps=1, decay=0.5)
    assert training.rate(2) == 0.0625
    assert after(training, round=1) == 2
    assert after(training, round=5) == pytest.approx(0.125)
    ahead = training.local_update(cohort(8, round=5), torch.zeros(1, 1), round=1)
    assert ahead.item() == 2


def test_a_pull_holds_the_model_near_its_anchor():
    # The gradient at 0 is -16 + 2 (0 - 4) = -24.
    anchor = torch.tensor([[4.0]])
    assert after(LocalTraining(lr=0.25, steps=1), pull=2.0, anchor=anchor) == 6


def test_weight_decay_pulls_towards_zero():
    # The gradient at 4 is 2 (4 - 8) + 1 * 4 = -4.
    assert after(LocalTraining(lr=0.25, steps=1, weight_decay=1.0), start=4.0) == 5


def test_a_part_that_is_not_named_stands_still():
    assert after(LocalTraining(lr=0.25), part=torch.tensor([False])) == 0


def test_clients_train_on_all_their_samples_unless_a_method_says_otherwise():
    some = cohort(1, 2)
    assert LocalTraining().training_samples(some) is some


def test_settings_by_name_are_those_of_local_training_only():
    assert LocalTraining(lr=0.3, steps=2).settings_by_name() == {
        "lr": 0.3,
        "decay": 1.0,
        "batch": 0,
        "weight_decay": 0.0,
        "steps": 2,
        "epochs": 0,
    }


@pytest.mark.parametrize(
    "bad",
    [{"lr": 0}, {"decay": 0}, {"batch": -1}, {"weight_decay": -1}, {"steps": 0}, {"epochs": -1}],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(SettingError, match=f"`{next(iter(bad))}` of LocalTraining must be"):
        LocalTraining(**bad)


def test_a_gradient_needs_neither_steps_nor_epochs():
    assert not hasattr(GradientSettings(), "steps")
