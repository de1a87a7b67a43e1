import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, HypCluster
from coterie.algorithms.hypcluster import State
from coterie.core.errors import SettingError
from tests.algorithms.lines import line, simulator, start_of


def hypotheses(*values):
    return State(torch.tensor(values).view(-1, 1))


def test_hypcluster_by_hand():
    # Clients at 1, 3 and -2 with 3, 1 and 1 samples; hypotheses at 1 and -1. The first two choose
    # h_1, the third h_2. A step of 1/4 goes half way: 1 stays, 1 -> 2, -1 -> -1.5.
    # h_1 = (3 * 1 + 1 * 2) / 4 = 1.25 and h_2 = -1.5.
    hypcluster = HypCluster(k=2, lr=0.25, steps=1)
    clients = simulator([1, 3, -2], sizes=[3, 1, 1]).at("round", 0)
    after, info = hypcluster.round(hypotheses(1.0, -1.0), clients)
    assert info.cluster.tolist() == [0, 0, 1]
    assert after.models.flatten().tolist() == [1.25, -1.5]


def test_a_hypothesis_that_nobody_chose_stays():
    after, _ = HypCluster(k=3, lr=0.25, steps=1).round(
        hypotheses(1.0, -1.0, 50.0), simulator([1, -2]).at("round", 0)
    )
    assert after.models.flatten().tolist() == [1.0, -1.5, 50.0]


@pytest.mark.parametrize("start", ["random", "restarts", "reject", "warm", "farthest"])
def test_it_makes_the_rounds_of_ifca_weighted_by_size(start):
    # Heavy weights on few clients, so that a plain mean would be another model.
    generator = torch.Generator().manual_seed(0)
    sizes = [40, 5, 30, 6, 40, 5, 30, 6]
    clients = []
    for i, n in enumerate(sizes):
        x = torch.randn(n, 5, generator=generator)
        clients.append((x, ((x[:, 0] > 0).long() + i // 4) % 2))
    federation = coterie.Federation.from_clients(clients, cluster=[0] * 4 + [1] * 4)
    task = coterie.Classification(lambda: nn.Linear(5, 2))
    settings = {"k": 2, "start": start, "batch": 4, "steps": 3, "tries": 30, "start_rounds": 2}
    hyp, by_size, equal = (
        coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
        for algorithm in (
            HypCluster(**settings),
            IFCA(weighting="size", **settings),
            IFCA(**settings),
        )
    )
    assert torch.equal(hyp.models, by_size.models)
    assert torch.equal(hyp.clusters, by_size.clusters)
    assert not torch.allclose(hyp.models, equal.models)


def test_the_four_rotations_are_recovered():
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(HypCluster(k=4), federation, task, rounds=5)
    assert run.metrics["ari"] == 1.0


def test_unseen_clients_choose_by_loss():
    run = coterie.simulate(
        HypCluster(k=2),
        line([1, 1, -1, -1]),
        coterie.Regression(lambda: nn.Linear(1, 1, bias=False)),
        rounds=3,
    )
    cluster = run.serve(line([-1.2, 0.7]))
    assert cluster.tolist() == [run.clusters[2].item(), run.clusters[0].item()]


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(SettingError, match="`k` of HypCluster must be at most the number of cli"):
        HypCluster(k=3).init(start_of(simulator([1, 2])))
