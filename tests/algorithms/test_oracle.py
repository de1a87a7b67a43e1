import pytest
import torch

import coterie
from coterie import Oracle
from coterie.core.errors import DataError
from tests.algorithms.lines import simulator, start_of


def test_oracle_by_hand():
    clients = simulator([1, 3, -2], draws=[0, 0.5])
    oracle = Oracle(lr=0.25, steps=1)
    state = oracle.init(start_of(clients, truth=torch.tensor([1, 1, 0])))
    state, info = oracle.round(state, clients.at("round", 0))
    # Cluster 0 from 0: the client at -2. Cluster 1 from 0.5: clients at 1 and 3.
    assert state.models.flatten().tolist() == [-1.0, 1.25]
    assert info.cluster.tolist() == [1, 1, 0]


def test_oracle_needs_the_truth():
    with pytest.raises(DataError, match="true clusters are known"):
        Oracle().init(start_of(simulator([1, 2])))


def test_oracle_serves_unseen_clients_by_loss():
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(Oracle(), federation, task, rounds=10)
    other, _ = coterie.load("rotated-digits", clients=8, seed=7)
    assert run.serve(other).tolist() == other.cluster.tolist()
