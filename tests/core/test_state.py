"""States nest, and come back from a checkpoint as they were."""

import json
import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

import coterie
from coterie import CoterieWarning, FedAvg, checks
from coterie.algorithms.fedavg import State
from coterie.core.algorithm import Info, Serving
from coterie.core.errors import CheckpointError, SettingError
from coterie.core.state import annotated_state, describe_state, rebuild_state, state_tensors
from coterie.vectors.folds import ByCluster


class Pair(NamedTuple):
    left: torch.Tensor
    right: object

    @property
    def both(self):
        return self.left, self.right


class Nested(NamedTuple):
    pair: Pair
    heads: dict
    many: tuple
    rounds: int
    best: float
    name: str
    nothing: None


def nested():
    inner = Pair(torch.tensor(7), Pair(torch.zeros(0, 3), None))
    heads = {"a": torch.ones(2), "b": [torch.zeros(1), {"deep": torch.tensor([True])}]}
    return Nested(inner, heads, (torch.arange(3), ()), 3, math.inf, "name", None)


def same(one, two):
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        assert one == two


class Here:
    """An algorithm of this module."""


def test_a_state_comes_back_as_it_was():
    state = nested()
    structure = json.loads(json.dumps(describe_state(state, Here())))
    back = rebuild_state(structure, state_tensors(state), Here())
    same(back, state)
    assert back.pair.both == back.pair


def test_tensors_are_named_by_their_path():
    assert list(state_tensors(nested())) == [
        "pair.left",
        "pair.right.left",
        "heads.a",
        "heads.b.0",
        "heads.b.1.deep",
        "many.0",
    ]
    with pytest.raises(SettingError, match=r"two tensors of the state have the same path a\.b"):
        state_tensors({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}})


@pytest.mark.parametrize("state", [{1, 2}, {3: torch.ones(1)}, object(), (torch.Generator(),)])
def test_what_a_checkpoint_cannot_hold_is_refused_in_a_sentence(state):
    with pytest.raises(SettingError, match=r"the state of Here may hold tensors, .* got"):
        describe_state(state, Here())


def test_a_tuple_that_cannot_be_found_again_is_refused_before_it_is_saved():
    class Local(NamedTuple):
        x: int

    with pytest.raises(SettingError, match="holds a Local that cannot be found again"):
        describe_state(Local(1), Here())


def test_a_state_that_the_algorithm_no_longer_has_is_refused():
    structure = describe_state(Pair(torch.ones(1), 2), Here())
    structure[1][0][0] = "other"
    for changed in (structure, ["named", [], "Gone"]):
        with pytest.raises(CheckpointError, match="which Here no longer has"):
            rebuild_state(changed, {"other": torch.ones(1)}, Here())


def test_a_checkpoint_without_a_structure_has_that_which_init_declares():
    structure = annotated_state(FedAvg())
    back = rebuild_state(structure, {"state.model": torch.ones(2)}, FedAvg(), "state")
    assert isinstance(back, State)
    with pytest.raises(CheckpointError, match=r"no state\.model, which FedAvg now needs"):
        rebuild_state(structure, {"state.other": torch.ones(2)}, FedAvg(), "state")
    with pytest.raises(CheckpointError, match="which NestedAvg no longer has"):
        rebuild_state(annotated_state(NestedAvg()), {}, NestedAvg(), "state")


class Counted(NamedTuple):
    model: Pair
    history: dict


@dataclass(frozen=True, kw_only=True)
class NestedAvg(FedAvg):
    """FedAvg with a state in which things lie deep; nothing of it is annotated."""

    def init(self, start):
        return Counted(Pair(start.models(1)[0], None), {"rounds": 0, "norms": ()})

    def round(self, state, clients):
        before = state.model.left
        ids, up = clients.run(self.train, fold=ByCluster(1, {"model": "model"}), model=before)
        after = up.pooled_mean("model")
        history = {
            "rounds": state.history["rounds"] + 1,
            "norms": (*state.history["norms"], after.norm() if len(ids) else before.norm()),
        }
        return Counted(Pair(after, None), history), Info(ids, up.cluster, 1)

    def serve(self, state, clients):
        return Serving(state.model.left[None], clients.ids, torch.zeros_like(clients.ids))


def test_a_run_with_a_nested_state_without_annotations_is_resumed_bit_for_bit():
    checks.resuming_changes_nothing(NestedAvg())


def test_models_that_lie_deep_and_are_not_finite_are_warned_of():
    federation, task = coterie.load("rotated-digits", clients=4)
    with pytest.warns(CoterieWarning, match="no longer finite"):
        coterie.simulate(NestedAvg(lr=1e30), federation, task, rounds=2)
