import pytest
import torch

import coterie
from coterie import Local
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator, start_of


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
    newcomer = Simulator(
        line([8]).train, run.task, first=2, population=2, memory=run.population.memory
    )
    serving = run.algorithm.serve(run.state, newcomer.at("serve"))
    model = serving.adapt(newcomer.cohort(newcomer.ids, 0, (0,)), model=serving.models)
    # Half the way to 8 in the first round, a quarter of the rest in the second.
    assert model.item() == pytest.approx(5.0)
    assert run.serve(line([8])).tolist() == [-1]
