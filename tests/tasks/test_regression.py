import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from coterie import Regression
from coterie.core.errors import DataError
from coterie.core.task import task_metrics
from coterie.data.tables.labels import TargetScale


def test_loss_is_the_mean_over_samples_that_count():
    task = Regression(nn.Linear(1, 1))
    output = torch.tensor([[[1.0], [2.0]], [[3.0], [50.0]]])
    y = torch.zeros(2, 2)
    mask = torch.tensor([[True, True], [True, False]])
    found = task_metrics(task, task.score(output, y, mask))
    assert found.clients["loss"].tolist() == [2.5, 9.0]
    assert found.metrics["loss"] == pytest.approx(14 / 3)


@pytest.mark.parametrize("unit", [1.0, 2500.0])
def test_errors_are_those_of_scikit_learn_in_the_units_of_the_label(unit):
    generator = torch.Generator().manual_seed(3)
    task = Regression(nn.Linear(1, 1), target=TargetScale(7e5, unit))
    output, y = torch.randn(2, 3, 30, generator=generator)
    mask = torch.arange(30) < torch.tensor([[30], [9], [2]])
    found = task_metrics(task, task.score(output[..., None], y, mask))
    true, guess = (each[mask].double() * unit + 7e5 for each in (y, output))
    assert found.metrics["rmse"] == pytest.approx(mean_squared_error(true, guess) ** 0.5)
    assert found.metrics["mae"] == pytest.approx(mean_absolute_error(true, guess))
    assert found.metrics["r2"] == pytest.approx(r2_score(true, guess))
    each = [r2_score(y[i, m], output[i, m]) for i, m in enumerate(mask)]
    assert found.clients["r2"].tolist() == pytest.approx(each)
    assert found.metrics["r2_macro"] == pytest.approx(sum(each) / 3)


def test_r2_of_targets_that_are_all_alike_is_left_out():
    task = Regression(nn.Linear(1, 1))
    y = torch.tensor([[0.1, 0.1, 0.1], [0.0, 1.0, 2.0]])
    output = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]])[..., None]
    found = task_metrics(task, task.score(output, y, torch.ones(2, 3)))
    assert found.clients["r2"].isnan().tolist() == [True, False]
    assert found.metrics["r2_macro"] == 1.0
    alone = task_metrics(task, task.score(output[:1], y[:1], torch.ones(1, 3)))
    assert not {"r2", "r2_macro"} & set(alone.metrics)
    assert alone.metrics["mae"] == pytest.approx(0.1)


def test_the_constant_output_is_the_mean_of_the_targets():
    task = Regression(nn.Linear(1, 1))
    y = torch.tensor([[1.0, 2.0, 9.0], [5.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    scores = task.score(torch.zeros(2, 3, 1), y, mask)
    assert task.constant_output(scores.sum(0)).tolist() == pytest.approx([8 / 3])


def test_regression_needs_one_output():
    with pytest.raises(DataError, match="network of one output"):
        Regression(nn.Linear(3, 2)).check_samples(torch.zeros(2, 3), torch.zeros(2))
