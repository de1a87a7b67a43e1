import pytest

from coterie import FedAvg
from tests.algorithms.lines import simulator, start_of


def test_fedavg_by_hand():
    # From 0 each client goes half the way to its target: 0.5, 1.5, -1.
    clients = simulator([1, 3, -2], sizes=[1, 1, 2], draws=[0])
    for weighting, expected in (("equal", 1 / 3), ("size", 0.0)):
        fedavg = FedAvg(lr=0.25, steps=1, weighting=weighting)
        before = fedavg.init(start_of(simulator([1], draws=[0])))
        after, info = fedavg.round(before, clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected, abs=1e-7)
        assert info.cluster.tolist() == [0, 0, 0]
