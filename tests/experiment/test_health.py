import warnings

import pytest
import torch
from torch import nn

import coterie
from coterie import IFCA, CoterieWarning, FedAvg, Federation, Local, Oracle, Regression


@pytest.fixture(scope="module")
def digits():
    return coterie.load("rotated-digits", clients=8)


def test_a_collapse_is_warned_of_once(digits):
    federation, task = digits
    same = Federation(federation.train)

    class Greedy(IFCA):
        def init(self, start):
            state = super().init(start)
            return state._replace(models=torch.stack([state.models[0], state.models[1] + 100]))

    with pytest.warns(CoterieWarning, match="clusters have collapsed") as caught:
        run = coterie.simulate(Greedy(k=2, start="random"), same, task, rounds=14)
    assert len([w for w in caught if w.category is CoterieWarning]) == 1
    assert len(run.warnings) == 1
    assert [bool(record["warnings"]) for record in run.records].index(True) == 9


def test_divergence_is_warned_of(digits):
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    task = Regression(lambda: nn.Linear(3, 1))
    with pytest.warns(CoterieWarning, match="no longer finite; a smaller lr"):
        coterie.simulate(FedAvg(lr=1e6, steps=100), federation, task, rounds=2)


def test_few_clients_per_round_are_no_collapse(digits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm in (IFCA(k=4), Oracle(), Local()):
            coterie.simulate(algorithm, *digits, rounds=15, per_round=1, evaluate=15)


def test_a_local_model_that_diverges_is_warned_of():
    federation, _ = coterie.load("linear-mixture", clients=4, samples=5, features=3)
    with pytest.warns(CoterieWarning, match="no longer finite"):
        coterie.simulate(Local(lr=1e30), federation, Regression(lambda: nn.Linear(3, 1)), rounds=2)
