import pytest
import torch

import coterie
from coterie import FedAvg, FedDist, FedDWS
from coterie.algorithms.feddws import State
from tests.algorithms.lines import simulator


def test_feddws_by_hand():
    # From 1 half the way to 3 and to 0: 2 of three samples and 0.5 of one. The mean is 6.5 / 4.
    clients = simulator([3, 0], sizes=[3, 1])
    after, _ = FedDWS(lr=0.25, steps=1).round(State(torch.tensor([1.0])), clients.at("round", 0))
    assert after.model.item() == pytest.approx(1 + 0.6 * 0.625)


def test_with_clients_of_one_size_it_is_feddist():
    federation, task = coterie.load("rotated-digits", clients=8, samples=20)
    assert len(federation.train.sizes.unique()) == 1
    one, other = (
        coterie.simulate(algorithm, federation, task, rounds=2)
        for algorithm in (FedDWS(), FedDist())
    )
    torch.testing.assert_close(one.models, other.models)


def test_all_the_way_it_is_fedavg_by_size():
    clients = simulator([3, 0], sizes=[3, 1])
    begun = State(torch.tensor([1.0]))
    one, _ = FedDWS(lr=0.25, steps=2, server_step=1.0).round(begun, clients.at("round", 0))
    fedavg = FedAvg(lr=0.25, steps=2, weighting="size")
    other, _ = fedavg.round(begun, clients.at("round", 0))
    assert torch.equal(one.model, other.model)
