import pytest
import torch
from torch import nn

from coterie import Regression
from coterie.core.errors import DataError
from coterie.core.task import task_metrics


def test_loss_is_the_mean_over_samples_that_count():
    task = Regression(nn.Linear(1, 1))
    output = torch.tensor([[[1.0], [2.0]], [[3.0], [50.0]]])
    y = torch.zeros(2, 2)
    mask = torch.tensor([[True, True], [True, False]])
    found = task_metrics(task, task.score(output, y, mask))
    assert found.clients["loss"].tolist() == [2.5, 9.0]
    assert found.metrics == {"loss": pytest.approx(14 / 3)}


def test_regression_needs_one_output():
    with pytest.raises(DataError, match="network of one output"):
        Regression(nn.Linear(3, 2)).check_samples(torch.zeros(2, 3), torch.zeros(2))
