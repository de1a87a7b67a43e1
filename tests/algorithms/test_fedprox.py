import pytest
import torch

import coterie
from coterie import FedAvg, FedProx
from coterie.algorithms.fedprox import State
from tests.algorithms.lines import simulator


def test_fedprox_by_hand():
    # Objective (w - y)^2 + mu/2 (w - 1)^2 with mu = 2 from w^t = 1: gradient 2 (w - y) + 2 (w - 1).
    # Step 1/4, target 3: 1 -> 1 + 4/4 = 2 -> 2 + (2 - 2)/4 = 2.
    # Target 0: 1 -> 1 - 2/4 = 0.5 -> 0.5 - (1 - 1)/4 = 0.5.
    # The first step is that of FedAvg, for the pull begins where w has left w^t.
    clients = simulator([3, 0], sizes=[3, 1])
    for steps, weighting, expected in ((1, "equal", 1.25), (2, "equal", 1.25), (2, "size", 1.625)):
        fedprox = FedProx(lr=0.25, steps=steps, mu=2.0, weighting=weighting)
        after, info = fedprox.round(State(torch.tensor([1.0])), clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected)
        assert info.cluster.tolist() == [0, 0]


def test_one_client_is_held_back_and_without_mu_it_is_not():
    # One client at 3, from 1: with mu = 2 it rests at 2, as above; without, 1 -> 2 -> 2.5.
    for mu, expected in ((2.0, 2.0), (0.0, 2.5)):
        fedprox = FedProx(lr=0.25, steps=2, mu=mu)
        after, _ = fedprox.round(State(torch.tensor([1.0])), simulator([3]).at("round", 0))
        assert after.model.item() == pytest.approx(expected)


def test_the_pull_is_towards_the_model_of_this_round():
    # A pull towards the very first model would hold w back for good; the minimum would not be 3.
    fedprox = FedProx(lr=0.25, steps=5, mu=2.0)
    state, clients = State(torch.tensor([1.0])), simulator([3])
    for t in range(30):
        state, _ = fedprox.round(state, clients.at("round", t, round=t))
    assert state.model.item() == pytest.approx(3.0, abs=1e-4)


def test_with_mu_0_it_is_fedavg():
    federation, task = coterie.load("rotated-digits", clients=8)
    prox, avg = (
        coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
        for algorithm in (FedProx(mu=0.0, batch=8, steps=4), FedAvg(batch=8, steps=4))
    )
    torch.testing.assert_close(prox.models, avg.models)


def test_a_stronger_pull_leaves_clients_nearer():
    federation, task = coterie.load("rotated-digits", clients=8)
    moved = []
    for mu in (0.0, 1.0, 5.0):
        run = coterie.simulate(FedProx(mu=mu), federation, task, rounds=1)
        start = coterie.core.algorithm.Start(run.training.participants, task, 8, seed=0).models(1)
        moved.append(float((run.models - start).norm()))
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]
