import pytest
import torch

import coterie
from coterie import IFCA, Centre, FedAvg, Federation
from coterie.core.errors import DataError
from coterie.core.task import task_metrics


def blobs():
    """Four clients with two samples each, around (0, 0) and around (8, 0)."""
    x = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    shifts = torch.tensor([[0.0, 0.0], [8.0, 0.0], [0.0, 0.0], [8.0, 0.0]])
    return Federation.from_clients([(x + shift, torch.zeros(2).long()) for shift in shifts])


def test_the_loss_is_the_squared_distance():
    task = Centre(2)
    output = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]]])
    y = torch.zeros(1, 3)
    assert task.losses(output, y).tolist() == [[25.0, 1.0, 162.0]]
    found = task_metrics(task, task.score(output, y, torch.tensor([[True, True, False]])))
    assert found.metrics == {"loss": 13.0}


def test_a_step_of_one_half_leads_to_the_mean():
    run = coterie.simulate(FedAvg(lr=0.5, steps=1), blobs(), Centre(2), rounds=1)
    torch.testing.assert_close(run.models, torch.tensor([[4.0, 0.0]]))
    # Every sample is 4 aside and 1 up or down.
    assert run.metrics["train_loss"] == pytest.approx(17.0)


def test_ifca_on_centres_is_k_means_of_clients():
    run = coterie.simulate(IFCA(k=2, lr=0.5, steps=1), blobs(), Centre(2), rounds=3)
    assert run.clusters.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    expected = torch.tensor([[0.0, 0.0], [8.0, 0.0]])[torch.arange(4) % 2]
    torch.testing.assert_close(run.models[run.clusters], expected)
    assert run.labels is None


def test_images_are_flattened_and_divided():
    images = torch.full((3, 2, 2), 51, dtype=torch.uint8)
    federation = Federation.from_clients([(images, torch.zeros(3).long())])
    run = coterie.simulate(FedAvg(lr=0.5, steps=1), federation, Centre(4, scale=255), rounds=1)
    torch.testing.assert_close(run.models, torch.full((1, 4), 0.2))


@pytest.mark.parametrize("features", [1, 3])
def test_samples_of_another_dimension_are_refused(features):
    with pytest.raises(DataError, match=f"centre of {features} features .* got 2"):
        coterie.simulate(FedAvg(), blobs(), Centre(features), rounds=1)
