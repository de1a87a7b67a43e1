"""When clients of IFCA get only their own model: counted by hand."""

import pytest
import torch

from coterie.algorithms.ifca import IFCA, State


def state_of(cluster: list[int], stable: int) -> State:
    return State(torch.zeros(2, 1), torch.empty(0), torch.tensor(cluster), torch.tensor(stable))


def test_a_change_of_one_client_begins_the_count_anew() -> None:
    state, ids = state_of([0, 1, 1], 4), torch.tensor([0, 2])
    rested = IFCA(k=2).note_identities(state, ids, torch.tensor([0, 1]))
    assert (rested.cluster.tolist(), int(rested.stable)) == ([0, 1, 1], 5)
    moved = IFCA(k=2).note_identities(state, ids, torch.tensor([0, 0]))
    assert (moved.cluster.tolist(), int(moved.stable)) == ([0, 1, 0], 0)


def test_nothing_is_noted_where_the_server_is_not_told() -> None:
    state = state_of([-1, -1], 3)
    assert IFCA(k=2).note_identities(state, torch.tensor([0, 1]), None) is state


@pytest.mark.parametrize(
    ("stable", "rest"),
    # With stable=2 and recheck=3: from the second round of rest on, but not in every fourth.
    [(0, False), (1, False), (2, True), (3, True), (4, True), (5, False), (6, True), (9, False)],
)
def test_identities_rest_but_for_every_recheck(stable: int, rest: bool) -> None:
    ifca = IFCA(k=2, stable=2, recheck=3)
    assert ifca.identities_rest(state_of([0, 1], stable), torch.tensor([0, 1])) is rest


def test_who_is_unknown_is_sent_all_models() -> None:
    ifca, state = IFCA(k=2, stable=2), state_of([0, -1], 2)
    assert ifca.identities_rest(state, torch.tensor([0]))
    assert not ifca.identities_rest(state, torch.tensor([0, 1]))


def test_identities_never_rest_unless_asked_for() -> None:
    assert not IFCA(k=2).identities_rest(state_of([0, 1], 50), torch.tensor([0, 1]))
