import pytest
import torch
from torch import nn

from coterie.core import schedules
from coterie.core.errors import SettingError
from coterie.core.local_training import GradientSettings, LocalTraining
from coterie.data.federation import Samples
from coterie.engine.simulator import Simulator
from coterie.tasks.regression import Regression
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


def test_the_step_size_follows_the_schedule_of_its_name():
    work = {"lr": 8.0, "decay": 0.5, "schedule_rounds": 4}
    rates = {
        name: [LocalTraining(schedule=name, **work).rate(t) for t in (0, 1, 2, 4, 5, 8)]
        for name in ("constant", "exponential", "step", "cosine")
    }
    assert rates["constant"] == [8, 8, 8, 8, 8, 8]
    assert rates["exponential"] == [8, 4, 2, 0.5, 0.25, 0.03125]
    assert rates["step"] == [8, 8, 8, 4, 4, 2]
    cosine = [8, 4 * (1 + 0.5**0.5), 4, 0, 0, 0]
    assert rates["cosine"] == pytest.approx(cosine, abs=1e-12)


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_a_schedule_that_goes_by_rounds_must_be_told_how_many(schedule):
    sentence = f"`schedule_rounds` of LocalTraining must be at least 1 with schedule={schedule}"
    with pytest.raises(SettingError, match=sentence):
        LocalTraining(schedule=schedule)


def test_a_schedule_of_ones_own_is_a_value_of_the_setting(monkeypatch):
    with pytest.raises(SettingError, match="`schedule` of LocalTraining must be one of"):
        LocalTraining(schedule="warmup")
    monkeypatch.setitem(schedules.SCHEDULES, "warmup", None)  # taken out again afterwards
    schedules.add_schedule("warmup", lambda round, training: min(1.0, (round + 1) / 4))
    training = LocalTraining(lr=0.25, steps=1, schedule="warmup")
    assert [training.rate(t) for t in (0, 1, 9)] == [0.0625, 0.125, 0.25]
    assert after(training, round=1) == 2


def test_optimiser_and_clipping_are_those_of_descend():
    # Gradients at 0: -16, clipped to -4; the second step of momentum 1/2 is -4 - 2.
    training = LocalTraining(lr=0.25, steps=2, optimizer="momentum", momentum=0.5, clip=4.0)
    assert after(training) == pytest.approx(0.25 * (4 + 4 + 2), abs=1e-5)
    # The first step of Adam has the step size as its length.
    assert after(LocalTraining(lr=0.25, steps=1, optimizer="adam")) == pytest.approx(0.25)


def test_every_local_training_begins_with_a_fresh_optimiser():
    training = LocalTraining(lr=0.25, steps=1, optimizer="momentum")
    client = cohort(8)
    once = training.local_update(client, torch.zeros(1, 1))
    assert training.local_update(client, once).item() == 6  # half the way again


def test_a_gradient_is_clipped_before_weight_decay_is_added():
    # At 1 the gradient is -14, clipped to -4; the decay of 0.5 is added whole.
    settings = GradientSettings(clip=4.0, weight_decay=0.5)
    found = settings.client_gradient(cohort(8), torch.ones(1, 1))
    assert found.item() == pytest.approx(-3.5, abs=1e-5)


def test_weights_of_samples_go_to_the_descent():
    client, weights = cohort(8), torch.tensor([[0.5]])
    end = LocalTraining(lr=0.25, steps=1).local_update(client, torch.zeros(1, 1), weights=weights)
    assert end.item() == 2


def test_a_pull_holds_the_model_near_its_anchor():
    # The gradient at 0 is -16 + 2 (0 - 4) = -24.
    anchor = torch.tensor([[4.0]])
    assert after(LocalTraining(lr=0.25, steps=1), pull=2.0, anchor=anchor) == 6


def test_weight_decay_spares_intercepts():
    task = Regression(nn.Linear(1, 1))
    work = Simulator(Samples.of([(torch.zeros(2, 1), torch.zeros(2))]), task)
    cohort = work.cohort(work.ids, 0, (0,))
    start = torch.tensor([[2.0, 0.0]])  # weight and bias
    assert cohort.gradient(start, weight_decay=0.5).tolist() == [[1.0, 0.0]]
    start = torch.tensor([[2.0, 3.0]])  # the bias has the gradient 6 of the loss alone
    assert cohort.gradient(start, weight_decay=0.5).tolist() == [[1.0, 6.0]]
    end = cohort.descend(start, lr=0.1, steps=1, weight_decay=0.5)
    torch.testing.assert_close(end, torch.tensor([[1.9, 2.4]]))


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
        "schedule": "exponential",
        "schedule_rounds": 0,
        "clip": 0.0,
        "steps": 2,
        "epochs": 0,
        "optimizer": "sgd",
        "momentum": 0.9,
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0},
        {"decay": 0},
        {"batch": -1},
        {"weight_decay": -1},
        {"steps": 0},
        {"epochs": -1},
        {"clip": -1},
        {"optimizer": "adagrad"},
        {"momentum": 1.5},
        {"schedule": "linear"},
        {"schedule_rounds": -1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(SettingError, match=f"`{next(iter(bad))}` of LocalTraining must be"):
        LocalTraining(**bad)


def test_a_gradient_needs_neither_steps_nor_epochs():
    assert not hasattr(GradientSettings(), "steps")
