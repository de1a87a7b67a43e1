import pytest
import torch
from torch import nn

import coterie
from coterie import FedAvg, FedSGD
from coterie.algorithms.fedsgd import State
from coterie.core.errors import SettingError
from tests.algorithms.lines import line, simulator, start_of


def test_fedsgd_by_hand():
    # Gradients 2 (w - y) at w = 1 for the targets 1, 3 and -2: 0, -4 and 6.
    # Plain mean 2/3; weighted by sizes 1, 1 and 2: (0 - 4 + 12) / 4 = 2.
    clients = simulator([1, 3, -2], sizes=[1, 1, 2])
    for weighting, gradient in (("equal", 2 / 3), ("size", 2.0)):
        fedsgd = FedSGD(lr=0.3, weighting=weighting)
        after, info = fedsgd.round(State(torch.tensor([1.0])), clients.at("round", 0))
        assert after.model.item() == pytest.approx(1 - 0.3 * gradient)
        assert info.cluster.tolist() == [0, 0, 0]


def test_the_mean_is_over_those_who_take_part():
    clients = simulator([1, 3, -2]).at("round", 0, ids=torch.tensor([1]))
    after, info = FedSGD(lr=0.3).round(State(torch.tensor([1.0])), clients)
    assert after.model.item() == pytest.approx(1 + 0.3 * 4)
    assert info.ids.tolist() == [1]


def test_the_step_size_decays_by_round():
    fedsgd = FedSGD(lr=0.4, decay=0.5)
    after, _ = fedsgd.round(State(torch.tensor([0.0])), simulator([1]).at("round", 2, round=2))
    # Gradient -2, step 0.4 * 0.5^2 = 0.1.
    assert after.model.item() == pytest.approx(0.2)


def test_weight_decay_is_part_of_the_gradient():
    # 2 (2 - 1) + 0.5 * 2 = 3 at w = 2.
    fedsgd = FedSGD(lr=0.1, weight_decay=0.5)
    after, _ = fedsgd.round(State(torch.tensor([2.0])), simulator([1]).at("round", 0))
    assert after.model.item() == pytest.approx(2 - 0.1 * 3)


def test_a_batch_is_a_part_of_the_data():
    # Two samples, targets 0 and 4: a gradient of one of them at w = 0 is 0 or -8, of both -4.
    both = coterie.Federation.from_clients([(torch.ones(2, 1), torch.tensor([0.0, 4.0]))])
    task = simulator([1]).task
    moves = set()
    for batch in (0, 1):
        clients = coterie.engine.simulator.Simulator(both.train, task)
        for t in range(8):
            after, _ = FedSGD(lr=0.1, batch=batch).round(
                State(torch.tensor([0.0])), clients.at("round", t, round=t)
            )
            moves.add((batch, round(after.model.item(), 4)))
    assert moves == {(0, 0.4), (1, 0.0), (1, 0.8)}


def test_it_is_fedavg_with_one_step():
    federation, task = coterie.load("rotated-digits", clients=8)
    for weighting in ("equal", "size"):
        sgd, avg = (
            coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
            for algorithm in (
                FedSGD(lr=0.2, weighting=weighting),
                FedAvg(lr=0.2, steps=1, weighting=weighting),
            )
        )
        torch.testing.assert_close(sgd.models, avg.models)


def test_networks_with_running_statistics_are_refused():
    network = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(SettingError, match="batch normalisation, whose running statistics"):
        coterie.simulate(FedSGD(), line([1, 2]), coterie.Regression(network), rounds=1)


def test_it_starts_from_one_drawn_model():
    assert FedSGD().init(start_of(simulator([1], draws=[5]))).model.tolist() == [5.0]
