import pytest
import torch

import coterie
from coterie import FedAvg, Local, Oracle
from coterie.core.errors import DataError
from tests.algorithms.lines import line, simulator, start_of


def test_fedavg_by_hand():
    # From 0 each client goes half the way to its target: 0.5, 1.5, -1.
    clients = simulator([1, 3, -2], sizes=[1, 1, 2], draws=[0])
    for weighting, expected in (("equal", 1 / 3), ("size", 0.0)):
        fedavg = FedAvg(lr=0.25, steps=1, weighting=weighting)
        before = fedavg.init(start_of(simulator([1], draws=[0])))
        after, info = fedavg.round(before, clients.at("round", 0))
        assert after.model.item() == pytest.approx(expected, abs=1e-7)
        assert info.cluster.tolist() == [0, 0, 0]


def test_local_by_hand():
    clients = simulator([1, 3], draws=[0])
    local = Local(lr=0.25, steps=1)
    state = local.init(start_of(clients))
    for t in range(2):
        state, _ = local.round(state, clients.at("round", t, round=t))
    serving = local.serve(state, clients.at("serve"))
    cohort = clients.cohort(torch.arange(2), 0, (0,))
    models = serving.adapt(cohort, model=serving.models[serving.cluster])
    assert models.flatten().tolist() == [0.75, 2.25]


def test_local_sends_nothing_but_the_start():
    federation, task = coterie.load("rotated-digits", clients=8)
    run = coterie.simulate(Local(), federation, task, rounds=5)
    assert run.bytes.total("down") == 8 * 4 * task.layout.size
    assert run.bytes.total("up") == 8 * 5 * 1
    assert run.models.shape == (8, task.layout.size)


def test_a_local_client_that_missed_rounds_begins_when_it_comes():
    clients = simulator([1, 3], draws=[0])
    local = Local(lr=0.25, steps=1)
    state = local.init(start_of(clients))
    state, _ = local.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    state, _ = local.round(state, clients.at("round", 1))
    assert clients.memory.rows["model"].flatten().tolist() == [0.75, 1.5]


def test_only_the_local_clients_that_never_took_part_make_up_for_it(monkeypatch):
    clients = simulator([1, 3, 5], draws=[0])
    local = Local(lr=0.25, steps=1)
    state = local.init(start_of(clients))
    for t in range(2):
        state, _ = local.round(state, clients.at("round", t, round=t, ids=torch.tensor([0, 2])))
    serving = local.serve(state, clients.at("serve"))
    descend, trained = type(clients.kernel).descend, []

    def counted(kernel, start, rows, descent):
        trained.append(rows.y[:, 0].tolist())
        return descend(kernel, start, rows, descent)

    monkeypatch.setattr(type(clients.kernel), "descend", counted)
    cohort = clients.cohort(torch.arange(3), 0, (0,))
    models = serving.adapt(cohort, model=serving.models[serving.cluster])
    assert models.flatten().tolist() == [0.75, 2.25, 3.75]
    assert trained == [[3.0], [3.0]]  # the client at 3, twice


def test_an_unseen_client_of_local_makes_up_for_all_rounds():
    run = coterie.simulate(
        Local(lr=0.25, steps=1, decay=0.5), line([1, 3]), simulator([1], draws=[0]).task, rounds=2
    )
    newcomer = coterie.engine.simulator.Simulator(
        line([8]).train, run.task, first=2, population=2, memory=run.population.memory
    )
    serving = run.algorithm.serve(run.state, newcomer.at("serve"))
    model = serving.adapt(newcomer.cohort(newcomer.ids, 0, (0,)), model=serving.models)
    # Half the way to 8 in the first round, a quarter of the rest in the second.
    assert model.item() == pytest.approx(5.0)
    assert run.serve(line([8])).tolist() == [-1]


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
