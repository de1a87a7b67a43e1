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


class Failing(FedAvg):
    """Warns in every round, and fails in the third the first time."""

    failed = False

    def round(self, state, clients):
        warnings.warn(f"round {clients.round}", CoterieWarning, stacklevel=1)
        if clients.round == 2 and not Failing.failed:
            Failing.failed = True
            raise ValueError("no more")
        return super().round(state, clients)


@pytest.mark.parametrize("copies", [{}, {"starts": 2}])
def test_warnings_are_shown_at_once_and_kept_also_if_the_round_then_fails(
    digits, tmp_path, copies, monkeypatch
):
    monkeypatch.setattr(Failing, "failed", False)
    settings = {"rounds": 4, "checkpoint": 1, "folder": tmp_path / "r", **copies}
    shown = []

    def on_round(record, run):
        shown.append(len(caught))

    with (
        warnings.catch_warnings(record=True, action="always") as caught,
        pytest.raises(ValueError, match="no more"),
    ):
        coterie.simulate(Failing(), *digits, on_round=on_round, **settings)
    assert shown == [1, 2]
    assert [str(warning.message) for warning in caught] == ["round 0", "round 1", "round 2"]
    with warnings.catch_warnings(record=True, action="always") as caught:
        run = coterie.simulate(Failing(), *digits, resume=True, **settings)
    kept = ["round 0", "round 1", "round 2", "round 3"]
    if not copies:  # copies of a run say the same once
        kept.insert(2, "round 2")
        assert [each["warnings"] for each in run.records] == [[f"round {t}"] for t in range(4)]
    assert run.result["warnings"] == kept


def test_a_warning_that_is_filtered_is_kept_and_not_shown(digits, monkeypatch):
    monkeypatch.setattr(Failing, "failed", True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", CoterieWarning)
        run = coterie.simulate(Failing(), *digits, rounds=2)
    assert caught == []
    assert run.warnings == ["round 0", "round 1"]
