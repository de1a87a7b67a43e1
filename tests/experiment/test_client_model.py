import pytest
import torch

import coterie
from coterie.core.errors import SettingError
from coterie.experiment.client_model import client_module


def test_the_model_of_a_mixture_mixes_what_its_parts_predict():
    federation, task = coterie.load("rotated-digits", clients=4)
    run = coterie.simulate(coterie.IFCA(k=3, start="random"), federation, task, rounds=2)
    outcome = run.training.outcome
    shares = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    mixed = outcome.serving._replace(mixture=shares, cluster=shares.argmax(1))
    outcome._serving = mixed
    scores = run.evaluator.scorer.score(mixed, "test").summary.clients["accuracy"]
    for client in range(4):
        x, y = federation.test.client(client)
        network = client_module(outcome, task, client)
        hits = (network(task.inputs(x)).argmax(1) == y).double().mean()
        assert float(hits) == pytest.approx(float(scores[client]))


def test_a_client_that_is_not_served_has_no_model():
    federation, task = coterie.load("rotated-digits", clients=4)
    run = coterie.simulate(coterie.FedAvg(), federation, task, rounds=1)
    outcome = run.training.outcome
    outcome._serving = outcome.serving.for_clients(torch.tensor([True, False, True, True]))
    assert client_module(outcome, task, 2) is not None
    with pytest.raises(SettingError, match="client 1 is not served a model: it did not answer"):
        client_module(outcome, task, 1)
