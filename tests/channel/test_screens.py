import pytest
import torch

import coterie
from coterie import CFL, IFCA, FedAvg, FeSEM
from coterie.algorithms import fedavg
from coterie.channel.displacements import Displaced
from coterie.channel.screens import Screen, client_distances, norms_within
from tests.algorithms.lines import simulator


def mean_after(targets, screen, model=0.0):
    clients = simulator(targets).at("round").defended(screen)
    state, info = FedAvg(lr=0.25, steps=1).round(fedavg.State(torch.tensor([model])), clients)
    return float(state.model), info.ids.tolist()


def test_who_moved_farther_than_three_times_the_median_is_left_out():
    # From 10 clients at 12, 8, 16, 14, 34 move by 1, -1, 3, 2 and 12; the median length is 2.
    screen = Screen("norm")
    mean, ids = mean_after([12, 8, 16, 14, 34], screen, 10.0)
    assert mean == pytest.approx((11 + 9 + 13 + 12) / 4)
    assert ids == [0, 1, 2, 3]
    assert screen.excluded == [4]
    assert mean_after([12, 8, 16, 14, 34], Screen("norm", 6.0), 10.0)[1] == [0, 1, 2, 3, 4]


def test_what_is_not_finite_is_left_out():
    assert norms_within(torch.tensor([1.0, torch.inf, 1.0, torch.nan]), 3.0).tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert norms_within(torch.tensor([torch.nan, torch.nan]), 3.0).tolist() == [False, False]


def test_two_clients_cannot_be_told_apart():
    assert mean_after([2, 900], Screen("norm"))[1] == [0, 1]


def test_lof_leaves_out_who_is_alone():
    screen = Screen("lof", neighbours=2)
    targets = [2.0, 2.2, 2.4, 2.6, 30.0, 2.1]
    assert mean_after(targets, screen)[1] == [0, 1, 2, 3, 5]
    assert screen.excluded == [4]


def test_lof_above_one_as_printed_leaves_out_about_half_of_the_honest():
    federation, task = coterie.load("rotated-digits", clients=40, seed=0)
    one = {"screen": "lof", "screen_limit": 1.0}
    run = coterie.simulate(FedAvg(), federation, task, rounds=1, seed=0, **one)
    assert 0.3 < run.metrics["excluded"] < 0.7
    run = coterie.simulate(FedAvg(), federation, task, rounds=1, seed=0, screen="lof")
    assert run.metrics["excluded"] == 0


def test_updates_and_models_are_compared_by_their_own_distances():
    value = torch.tensor([[1.0, 0.0], [4.0, 4.0], [torch.inf, 0.0]])
    sent = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    field = Displaced("model", value, sent, torch.tensor([0, 1, 1]))
    for moved in (False, True):
        finite, found = client_distances([field], moved=moved)
        assert finite.tolist() == [True, True, False]
        assert found.tolist() == [[0.0, 5.0], [5.0, 0.0]]
    far = field._replace(models=torch.tensor([[1.0, 0.0], [4.0, 4.0]]))
    assert client_distances([far], moved=True)[1][0, 1] == 0


@pytest.mark.parametrize("method", [CFL(), FeSEM(k=2), IFCA(k=2), IFCA(k=2, average="gradients")])
@pytest.mark.parametrize("screen", ["norm", "lof"])
def test_uploads_of_any_fold_stay_with_their_clients(method, screen):
    # One client of ten sends an update ten times its own, to stacked and to folded uploads.
    federation, task = coterie.load("rotated-digits", clients=12, hidden=8, seed=0)
    run = coterie.simulate(
        method,
        federation,
        task,
        rounds=2,
        attack="boosted",
        attackers=0.1,
        screen=screen,
        screen_neighbours=4,
    )
    attacker = torch.nonzero(run.training.participants.attackers).flatten().tolist()
    for record in run.records:
        assert set(attacker) <= set(record["excluded"])
    assert run.metrics["detection_recall"] == 1.0
    assert run.metrics["attacker_share"] == 0.0


def test_where_everybody_is_excluded_the_round_changes_nothing():
    class Everyone(Screen):
        def apply(self, call, ids, upload):
            return ids[:0], type(upload)(*(value[:0] for value in upload))

    mean, ids = mean_after([2, 4, 6], Everyone("norm"), 10.0)
    assert (mean, ids) == (10.0, [])
