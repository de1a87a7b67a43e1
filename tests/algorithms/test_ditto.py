import pytest
import torch

import coterie
from coterie import Ditto, FedAvg, Local
from coterie.algorithms.ditto import State
from coterie.channel.metering import ByteMeter
from coterie.core.task import task_metrics
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator, start_of


def served(ditto, state, clients):
    """The models that all clients of a simulator use."""
    serving = ditto.serve(state, clients.at("serve"))
    cohort = clients.cohort(clients.ids, 0, (0,))
    return serving.adapt(cohort, model=serving.models[serving.cluster]).flatten().tolist()


def test_ditto_by_hand():
    # Clients at 2 and -4, lambda = 2, steps of 1/4, one each. From w = 0 both begin with v = 0:
    # round 0, w = 0:   v: 0 - (2 (0 - 2) + 2 (0 - 0))/4 = 1 and -2;   w_k = 1 and -2, w = -0.5
    # round 1, w = -.5: v: 1 - (2 (1 - 2) + 2 (1 + 0.5))/4 = 0.75
    #                   v: -2 - (2 (-2 + 4) + 2 (-2 + 0.5))/4 = -2.25
    #                   w_k = 0.75 and -2.25, w = -0.75
    clients = simulator([2, -4], draws=[0])
    ditto = Ditto(lr=0.25, steps=1, personal_pull=2.0)
    state = ditto.init(start_of(clients))
    state, _ = ditto.round(state, clients.at("round", 0, round=0))
    assert state.model.item() == pytest.approx(-0.5)
    assert served(ditto, state, clients) == pytest.approx([1.0, -2.0])
    state, info = ditto.round(state, clients.at("round", 1, round=1))
    assert state.model.item() == pytest.approx(-0.75)
    assert served(ditto, state, clients) == pytest.approx([0.75, -2.25])
    assert info.ids.tolist() == [0, 1]
    assert state.rounds.item() == 2


def test_personal_models_have_a_number_of_steps_of_their_own():
    # Two steps from 0 towards 2 with lambda = 2: 0 -> 1 -> 1 - (2 (1 - 2) + 2 (1 - 0))/4 = 1.
    # Three without a pull: 0 -> 1 -> 1.5 -> 1.75. The global model makes one: 1.
    for steps, pull, expected in ((2, 2.0, 1.0), (3, 0.0, 1.75)):
        clients = simulator([2], draws=[0])
        ditto = Ditto(lr=0.25, steps=1, personal_steps=steps, personal_pull=pull)
        state, _ = ditto.round(ditto.init(start_of(clients)), clients.at("round", 0))
        assert served(ditto, state, clients) == pytest.approx([expected])
        assert state.model.item() == pytest.approx(1.0)


def test_the_global_model_is_that_of_fedavg():
    federation, task = coterie.load("rotated-digits", clients=8)
    for weighting in ("equal", "size"):
        ditto, fedavg = (
            coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
            for algorithm in (Ditto(weighting=weighting), FedAvg(weighting=weighting))
        )
        torch.testing.assert_close(ditto.state.model, fedavg.state.model)


def test_without_a_pull_personal_models_are_local_ones():
    federation, task = coterie.load("rotated-digits", clients=8)
    ditto, local = (
        coterie.simulate(algorithm, federation, task, rounds=3)
        for algorithm in (Ditto(personal_pull=0.0), Local())
    )
    torch.testing.assert_close(ditto.models, local.models, atol=1e-5, rtol=1e-5)


def test_personal_models_stay_with_their_clients():
    clients, count = simulator([2, -4], draws=[0]), ByteMeter()
    ditto = Ditto(lr=0.25, steps=1)
    ditto.round(ditto.init(start_of(clients)), clients.at("round", 0).through(listener=count))
    assert count.table() == {
        "Ditto.train": {"down": {"model": 8}, "up": {"cluster": 16, "model": 8, "size": 16}}
    }


def test_a_client_that_is_absent_keeps_its_personal_model():
    clients = simulator([2, -4], draws=[0])
    ditto = Ditto(lr=0.25, steps=1, personal_pull=2.0)
    state, _ = ditto.round(ditto.init(start_of(clients)), clients.at("round", 0))
    state, info = ditto.round(state, clients.at("round", 1, round=1, ids=torch.tensor([0])))
    assert info.ids.tolist() == [0]
    assert served(ditto, state, clients) == pytest.approx([0.75, -2.0])


def test_a_late_client_begins_at_the_model_it_is_sent():
    # w = 1 after the first client's step; the second goes half the way from there to -4.
    clients = simulator([2, -4], draws=[0])
    ditto = Ditto(lr=0.25, steps=1, personal_pull=2.0)
    state = ditto.init(start_of(clients))
    state, _ = ditto.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    state, _ = ditto.round(state, clients.at("round", 1, round=1, ids=torch.tensor([1])))
    assert served(ditto, state, clients) == pytest.approx([1.0, -1.5])


def test_a_client_that_never_took_part_does_not_hide_what_others_have_learned():
    # Client 0 made two steps from 0 towards 2 without a pull: 1.5, and w = 1 after one of them.
    # Client 1 makes its two from w when it is served: 1 -> -1.5 -> -2.75.
    clients = simulator([2, -4], draws=[0])
    ditto = Ditto(lr=0.25, steps=1, personal_steps=2, personal_pull=0.0)
    state = ditto.init(start_of(clients))
    state, _ = ditto.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    assert served(ditto, state, clients) == pytest.approx([1.5, -2.75])


def test_an_unseen_client_makes_a_model_from_the_global_one():
    # From w = 1 towards 9 in the third round, step 0.25 * 0.5^2 = 1/16, two steps, lambda = 2:
    # 1 + 16/16 = 2, then 2 - (2 (2 - 9) + 2 (2 - 1))/16 = 2.75.
    seen = simulator([2, -4])
    newcomer = Simulator(line([9]).train, seen.task, first=2, population=2, memory=seen.memory)
    ditto = Ditto(lr=0.25, decay=0.5, steps=2, personal_pull=2.0)
    state = State(torch.tensor([1.0]), torch.tensor(2))
    assert served(ditto, state, newcomer) == pytest.approx([2.75])
    # Nothing is kept: asked again, it gives the same.
    assert served(ditto, state, newcomer) == pytest.approx([2.75])


def test_clients_are_scored_with_their_personal_models():
    federation, task = coterie.load("rotated-digits", clients=8)
    run = coterie.simulate(Ditto(), federation, task, rounds=5)
    assert run.models.shape == (8, task.layout.size)
    cohort = run.evaluator.scorer.simulators["test"].cohort(torch.arange(8), 0, (0,))
    scores = task_metrics(task, cohort.score(run.population.memory.rows["personal"]))
    assert run.metrics["accuracy"] == pytest.approx(scores.metrics["accuracy"])
