import pytest
import torch
from torch import nn

import coterie
from coterie import Classification, Federation, PerFedAvg
from coterie.algorithms.per_fedavg import State
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator


def served(algorithm, state, clients):
    """The models that all clients of a simulator use."""
    serving = algorithm.serve(state, clients.at("serve"))
    cohort = clients.cohort(clients.ids, 0, (0,))
    return serving.adapt(cohort, model=serving.models[serving.cluster]).flatten().tolist()


def test_per_fedavg_by_hand():
    # f_i(w) = (w - y)^2, alpha = 1/4 goes half the way: w~ = (w + y)/2. The gradient there is
    # 2 (w~ - y) = w - y, and beta = 1/4 takes w_i a quarter of the way to y.
    # From 0 towards 4 and -2: one meta-step 1 and -0.5, two 1.75 and -0.875.
    # FedAvg with the same step would have gone half the way.
    clients = simulator([4, -2], sizes=[1, 2])
    for steps, weighting, expected in (
        (1, "equal", 0.25),
        (2, "equal", 0.4375),
        (2, "size", 0.0),
    ):
        algorithm = PerFedAvg(lr=0.25, adapt_lr=0.25, steps=steps, weighting=weighting)
        after, info = algorithm.round(State(torch.tensor([0.0])), clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected, abs=1e-6)
        assert info.ids.tolist() == [0, 1]


def test_clients_are_served_their_own_adapted_models():
    # From w = 1, steps of half the way to 5 and -3.
    clients, state = simulator([5, -3]), State(torch.tensor([1.0]))
    for steps, expected in ((0, [1.0, 1.0]), (1, [3.0, -1.0]), (2, [4.0, -2.0])):
        algorithm = PerFedAvg(adapt_lr=0.25, adapt_steps=steps)
        assert served(algorithm, state, clients) == pytest.approx(expected)


def test_unseen_clients_are_served_alike():
    clients = simulator([5, -3])
    newcomer = Simulator(line([9]).train, clients.task, first=2, population=2)
    assert served(PerFedAvg(adapt_lr=0.25), State(torch.tensor([1.0])), newcomer) == [5.0]


def test_only_the_meta_step_decays():
    # Round 1: beta = 0.5 * 0.5; w~ = 2 as before, gradient 2 (2 - 4) = -4, so w = 1.
    algorithm = PerFedAvg(lr=0.5, decay=0.5, adapt_lr=0.25, steps=1)
    after, _ = algorithm.round(State(torch.tensor([0.0])), simulator([4]).at("round", 1, round=1))
    assert after.model.item() == pytest.approx(1.0)


def test_weight_decay_is_part_of_both_gradients():
    # Gradient 2 (w - 4) + w at w = 0: -8, so w~ = 2; there 2 (2 - 4) + 2 = -2, so w = 0.5 * 2 = 1.
    algorithm = PerFedAvg(lr=0.5, adapt_lr=0.25, steps=1, weight_decay=1.0)
    after, _ = algorithm.round(State(torch.tensor([0.0])), simulator([4]).at("round", 0))
    assert after.model.item() == pytest.approx(1.0)


def test_the_two_batches_of_a_meta_step_are_drawn_apart():
    # Samples with targets 0 and 4, one per batch: w~ from 0 is 0 or 2 (half the way), and the
    # gradient there, for either target, is 0 or -8, 4 or -4. Times -1/2: four possible ends.
    both = Federation.from_clients([(torch.ones(2, 1), torch.tensor([0.0, 4.0]))])
    clients = Simulator(both.train, simulator([1]).task)
    algorithm = PerFedAvg(lr=0.5, adapt_lr=0.25, steps=1, batch=1)
    ends = set()
    for t in range(40):
        after, _ = algorithm.round(State(torch.tensor([0.0])), clients.at("round", t))
        ends.add(round(after.model.item(), 4))
    assert ends == {0.0, 4.0, -2.0, 2.0}


def test_running_statistics_are_carried_and_stay_positive():
    torch.manual_seed(0)
    # Features of very different scale from client to client, hard on statistics that are added up.
    clients = [(10.0**i * torch.randn(12, 4), torch.randint(2, (12,))) for i in range(3)]
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = Classification(network)
    run = coterie.simulate(PerFedAvg(batch=4), Federation.from_clients(clients), task, rounds=2)
    state = task.layout.unflatten(run.state.model)
    assert (state["0.running_var"] > 10).all()  # they start at 1
    assert state["0.num_batches_tracked"].item() == 2 * 2 * 10  # rounds x 2 batches x meta-steps


def test_it_settles_where_clients_are_well_off_after_a_step():
    # Client 1 has x = 1, y = 3 and client 2 has x = 1/2, y = -1/2: losses (w - 3)^2 and
    # (w + 1)^2 / 4. A step of 1/4 leaves 1/2 of the first distance and 7/8 of the second, so the
    # gradients at w~ are (w - 3) and 7/16 (w + 1), and their mean is zero at w = 41/23.
    # FedAvg, which does not look ahead, settles at 2.2.
    federation = Federation.from_clients(
        [
            (torch.ones(1, 1), torch.tensor([3.0])),
            (torch.full((1, 1), 0.5), torch.tensor([-0.5])),
        ]
    )
    clients = Simulator(federation.train, simulator([1]).task)
    algorithm, state = PerFedAvg(lr=0.5, adapt_lr=0.25, steps=1), State(torch.tensor([0.0]))
    for t in range(50):
        state, _ = algorithm.round(state, clients.at("round", t, round=t))
    assert state.model.item() == pytest.approx(41 / 23, abs=1e-5)
