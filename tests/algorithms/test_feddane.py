import pytest
import torch
from torch import nn

import coterie
from coterie import FedDANE, FedProx
from coterie.algorithms.feddane import State
from coterie.channel.lost_replies import LoseReplies
from coterie.core.errors import SettingError
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator


class Calls:
    """Listens to who is asked for what."""

    def __init__(self):
        self.asked = []

    def on_call(self, call):
        self.asked.append((call.step.__name__, call.ids.tolist()))

    def on_replies(self, call, traffic):
        pass


def test_feddane_by_hand():
    # F = (w - 3)^2 and w^2 at w^t = 1 have gradients -4 and 2; their mean is -1. So both clients
    # minimise with gradient -1 at 1. Client 0: 2 (w - 3) + 3 + 2 (w - 1), from 1 by steps of 1/4 to
    # 1.25, where it is -3.5 + 3 + 0.5 = 0. Client 1: 2 w - 3 + 2 (w - 1), to 1.25, where it is 0.
    # Weighted by sizes 3 and 1 the mean gradient is -2.5: both go to 1.625 and rest there.
    clients = simulator([3, 0], sizes=[3, 1])
    for steps, weighting, expected in ((1, "equal", 1.25), (4, "equal", 1.25), (4, "size", 1.625)):
        feddane = FedDANE(lr=0.25, steps=steps, mu=2.0, gradients="all", weighting=weighting)
        after, info = feddane.round(State(torch.tensor([1.0])), clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected)
        assert info.ids.tolist() == [0, 1]
        assert info.cluster.tolist() == [0, 0]


def test_one_half_gives_the_gradient_and_the_other_trains():
    # Whoever trains begins with the gradient of the other one: -4 of the client at 3, 2 of that at
    # 0. One step of 1/4 goes to 2 or to 0.5, whose own gradient would lead to 0.5 or to 2.
    feddane = FedDANE(lr=0.25, steps=1, mu=2.0)
    ends = set()
    for t in range(12):
        calls = Calls()
        clients = simulator([3, 0]).at("round", t, round=t).through(listener=calls)
        after, info = feddane.round(State(torch.tensor([1.0])), clients)
        (first, (one,)), (second, (other,)) = calls.asked
        assert (first, second) == ("differentiate", "train")
        assert {one, other} == {0, 1}
        assert after.model.item() == pytest.approx(2.0 if one == 0 else 0.5)
        assert info.ids.tolist() == [0, 1]
        ends.add(one)
    assert ends == {0, 1}


def test_the_two_samples_have_no_client_in_common():
    """In a public code the second sample is drawn from the seed of the first: the same clients."""
    federation, task = coterie.load("rotated-digits", clients=20)
    population, splits = Simulator(federation.train, task), set()
    for t in range(5):
        calls = Calls()
        clients = population.at("round", t, round=t).through(listener=calls)
        FedDANE().round(State(task.draw(torch.Generator())), clients)
        (_, one), (_, other) = calls.asked
        assert len(one) == len(other) == 10
        assert sorted(one + other) == list(range(20))
        splits.add(tuple(one))
    assert len(splits) == 5


def test_a_single_client_does_both():
    after, _ = FedDANE(lr=0.25, steps=1).round(
        State(torch.tensor([1.0])), simulator([3]).at("round", 0)
    )
    assert after.model.item() == pytest.approx(2.0)  # no correction: its gradient is that of all


def test_what_suits_all_clients_together_stays():
    # At the mean of the targets the gradients cancel, and each client's objective is at rest.
    clients = simulator([4, 0, 2]).at("round", 0)
    after, _ = FedDANE(lr=0.25, gradients="all").round(State(torch.tensor([2.0])), clients)
    assert after.model.item() == pytest.approx(2.0)


def test_with_clients_alike_it_is_fedprox():
    federation = line([3, 3, 3, 3])
    task = coterie.Regression(lambda: nn.Linear(1, 1, bias=False))
    one, other = (
        coterie.simulate(algorithm, federation, task, rounds=3)
        for algorithm in (FedDANE(mu=0.5, steps=3), FedProx(mu=0.5, steps=3))
    )
    torch.testing.assert_close(one.models, other.models)


def test_without_a_gradient_the_model_stays():
    clients = simulator([3, 0]).at("round", 0).through(LoseReplies(1.0))
    after, info = FedDANE().round(State(torch.tensor([1.0])), clients)
    assert after.model.item() == 1.0
    assert len(info.ids) == 0


def test_without_mu_it_is_refused():
    with pytest.raises(SettingError, match="`mu` of FedDANE must be greater than 0, got 0"):
        FedDANE(mu=0.0)
