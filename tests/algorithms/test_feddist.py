import pytest
import torch

import coterie
from coterie import FedAvg, FedDist, FedDWS
from coterie.algorithms.feddist import State
from coterie.core.errors import SettingError
from tests.algorithms.lines import simulator


def test_feddist_by_hand():
    # From 1 half the way to 3 and to 0: 2 and 0.5. Sizes do not matter: the mean is 1.25, of which
    # the server goes 60 %.
    clients = simulator([3, 0], sizes=[3, 1])
    after, info = FedDist(lr=0.25, steps=1).round(
        State(torch.tensor([1.0])), clients.at("round", 0)
    )
    assert after.model.item() == pytest.approx(1 + 0.6 * 0.25)
    assert info.cluster.tolist() == [0, 0]


def test_the_server_may_go_all_the_way_and_beyond():
    clients = simulator([3, 0])
    for server_step, expected in ((1.0, 1.25), (2.0, 1.5), (0.2, 1.05)):
        feddist = FedDist(lr=0.25, steps=1, server_step=server_step)
        after, _ = feddist.round(State(torch.tensor([1.0])), clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected)


def test_all_the_way_it_is_fedavg():
    federation, task = coterie.load("rotated-digits", clients=8)
    dist, avg = (
        coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
        for algorithm in (FedDist(server_step=1.0, batch=8), FedAvg(batch=8))
    )
    torch.testing.assert_close(dist.models, avg.models)


def test_a_server_that_does_not_move_is_refused():
    with pytest.raises(SettingError, match="`server_step` of FedDist must be greater than 0, got"):
        FedDist(server_step=0.0)


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
