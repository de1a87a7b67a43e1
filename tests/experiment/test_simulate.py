"""`coterie.simulate` with an algorithm of the user's own, written in a notebook."""

import inspect
import sys
from types import ModuleType

import pytest

import coterie
from coterie.cli.describe import describe_algorithm

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
