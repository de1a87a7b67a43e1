"""`coterie.simulate` with an algorithm of the user's own, written in a notebook."""

import inspect
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import coterie
from coterie.cli.describe import describe_algorithm
from coterie.core.errors import CoterieError, SettingError
from coterie.core.sampling import FixedSize

CELL = '''
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Info, Serving, Start
from coterie.core.clients import Clients, on_client
from coterie.core.cohort import Cohort
from coterie.core.settings import setting


class State(NamedTuple):
    model: Tensor


class Upload(NamedTuple):
    gradient: Tensor


@dataclass(frozen=True, kw_only=True)
class Mine:
    """Steps along the mean gradient."""

    lr: float = setting(0.1, "step size")

    def init(self, start: Start) -> State:
        return State(start.models(1)[0])

    def round(self, state: State, clients: Clients) -> tuple[State, Info]:
        ids, up = clients.run(self.slope, model=state.model)
        after = State(state.model - self.lr * up.gradient.mean(0))
        return after, Info(ids, torch.zeros_like(ids), 1)

    def serve(self, state: State, clients: Clients) -> Serving:
        return Serving(state.model[None], clients.ids, torch.zeros_like(clients.ids))

    @on_client
    def slope(self, cohort: Cohort, model: Tensor) -> Upload:
        return Upload(cohort.gradient(model.expand(len(cohort), -1)))
'''


@pytest.fixture
def notebook_class(monkeypatch):
    """A class whose source nobody can read."""
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    exec(CELL, module.__dict__)
    with pytest.raises((OSError, TypeError)):
        inspect.getsource(module.Mine)
    return module.Mine


def test_a_class_from_a_notebook_works_in_a_grid(notebook_class, tmp_path):
    federation, task = coterie.load("rotated-digits", clients=4)
    run = coterie.simulate(
        notebook_class(), federation, task, rounds=2, grid={"lr": [0.1, 0.5]}, folder=tmp_path / "r"
    )
    assert [copy["lr"] for copy in run.result["copies"]] == [0.1, 0.5]
    assert run.result["chosen"]["lr"] == 0.5  # the larger step goes further in two rounds


def test_a_class_from_a_notebook_is_described_with_the_meaning_of_its_settings(notebook_class):
    text = describe_algorithm(notebook_class)
    assert "lr=0.1  step size" in text
    assert "up    gradient" in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({0: coterie.IFCA}, r"must be an instance, as in IFCA\(\), got the class IFCA"),
        ({0: "ifca"}, r"`algorithm` must be an algorithm, as in .*, got 'ifca'"),
        ({0: None}, "`algorithm` must be an algorithm, .* got None"),
        ({1: [(1, 2)]}, "`federation` must be a Federation, .*from_clients give it, got a list"),
        ({1: "rotated-digits"}, "`federation` must be a Federation, .* got 'rotated-digits'"),
        (
            {2: nn.Linear(2, 2)},
            r"as in coterie.Classification\(network\), got the network a Linear",
        ),
        ({2: nn.Linear}, "got the network the class Linear"),
        ({2: coterie.Classification}, "`task` must be a task, .* got the class Classification"),
        ({2: None}, "`task` must be a task, .* got None"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said_in_a_sentence(change, sentence):
    arguments = [coterie.FedAvg(), *coterie.load("rotated-digits", clients=4)]
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(SettingError, match=sentence):
        coterie.simulate(*arguments, rounds=1)


def test_a_method_that_cannot_take_what_it_is_given_is_refused():
    class Short(coterie.FedAvg):
        def serve(self, state): ...

    federation, task = coterie.load("rotated-digits", clients=4)
    with pytest.raises(
        SettingError,
        match=r"serve of Short must take \(self, state, clients\), got \(self, state\)$",
    ):
        coterie.simulate(Short(), federation, task, rounds=1)


def test_swapped_arguments_are_refused_in_a_sentence():
    federation, task = coterie.load("rotated-digits", clients=4)
    with pytest.raises(
        SettingError, match=r"`algorithm` must be an algorithm, .* got a Federation"
    ):
        coterie.simulate(federation, coterie.FedAvg(), task)
    with pytest.raises(SettingError, match=r"`federation` must be .* got a Classification"):
        coterie.simulate(coterie.FedAvg(), task, federation)


def test_participants_are_those_that_the_user_names():
    federation, task = coterie.load("rotated-digits", clients=6)
    asked = []

    def on_round(record, run):
        asked.append(record["asked"])

    settings = {"rounds": 3, "on_round": on_round}
    coterie.simulate(
        coterie.FedAvg(), federation, task, participants=lambda t: range(t + 1), **settings
    )
    assert asked == [1, 2, 3]
    first = coterie.simulate(coterie.FedAvg(), federation, task, rounds=2, fraction=0.5)
    same = coterie.simulate(coterie.FedAvg(), federation, task, rounds=2, participants=FixedSize(3))
    assert torch.equal(first.models, same.models)
    # The start of IFCA asks more clients than the function names.
    ifca = coterie.IFCA(k=4, start="random")
    run = coterie.simulate(ifca, federation, task, rounds=2, participants=lambda t: [5, 0])
    assert [record["asked"] for record in run.records] == [2, 2]
    for wrong in (lambda t: [9], lambda t: [1, 1], 3, FixedSize):
        with pytest.raises(CoterieError, match=r"must (draw|be a function)"):
            coterie.simulate(coterie.FedAvg(), federation, task, participants=wrong, rounds=1)


def test_initial_models_are_where_a_run_begins():
    federation, task = coterie.load("rotated-digits", clients=4)
    before = coterie.simulate(coterie.FedAvg(), federation, task, rounds=3)
    again = coterie.simulate(
        coterie.FedAvg(lr=1e-9), federation, task, rounds=1, initial=before.model(0)
    )
    assert again.metrics["accuracy"] == before.metrics["accuracy"]
    several = coterie.simulate(
        coterie.IFCA(k=2), federation, task, rounds=1, initial=before.models.repeat(2, 1) * 1.0
    )
    assert several.rounds == 1


def test_dir_lists_the_public_names():
    assert {"simulate", "compare", "load", "IFCA", "Run"} <= set(dir(coterie))
    for name in dir(coterie):
        assert getattr(coterie, name) is not None
