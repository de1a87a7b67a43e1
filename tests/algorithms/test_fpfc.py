import pytest
import torch

import coterie
from coterie import FPFC, FPFCL1
from coterie.algorithms.fpfc import State
from coterie.core.errors import SettingError
from tests.algorithms.lines import line, simulator, start_of

# A step of 1/8 with rho = 2 on the loss (w - y)^2: w goes a quarter of the way to y and a quarter
# of the way to zeta. With lambda = 1 pairs that differ by 0.5 to 1.5 keep |delta| - 1/2 of it.
HAND = {"lr": 0.125, "steps": 1, "rho": 2.0, "lam": 1.0}


def test_fpfc_by_hand():
    clients = simulator([4, 8], sizes=[1, 3], draws=[0])
    fpfc = FPFC(**HAND, nu=0.2)
    state = fpfc.init(start_of(clients))
    state, info = fpfc.round(state, clients.at("round", 0))
    # omega = 1, 2; delta = -1, theta = -1/2, v = -1. zeta_1 = mean(1, 2 - 1/2 + 1/2),
    # zeta_2 = mean(1 + 1/2 - 1/2, 2).
    assert state.omega.flatten().tolist() == [1.0, 2.0]
    assert state.zeta.flatten().tolist() == [1.5, 1.5]
    assert info.cluster.tolist() == [0, 1]
    state, info = fpfc.round(state, clients.at("round", 1, ids=torch.tensor([0])))
    # Only device 1 moves: omega_1 = 1 + 3/4 + 1/8. delta = -1/8 + v/2 = -5/8, theta = -1/8, v = -1.
    # zeta_1 = mean(1 7/8, 2 - 1/8 + 1/2), zeta_2 = mean(1 7/8 + 1/8 - 1/2, 2).
    assert state.omega.flatten().tolist() == [1.875, 2.0]
    assert state.zeta.flatten().tolist() == pytest.approx([2.125, 1.75], abs=1e-6)
    assert info.ids.tolist() == [0]
    assert info.cluster.tolist() == [0]
    # |theta| <= nu: one cluster, whose model is weighted by the sizes 1 and 3.
    serving = fpfc.serve(state, clients.at("serve"))
    assert serving.cluster.tolist() == [0, 0]
    assert serving.models.flatten().tolist() == pytest.approx([(1.875 + 3 * 2) / 4])


def test_devices_are_apart_before_they_are_drawn_together():
    clients = simulator([4, 8], draws=[0])
    fpfc = FPFC(**HAND, apart=1, nu=0.2)
    state, info = fpfc.round(fpfc.init(start_of(clients)), clients.at("round", 0, round=0))
    # omega = 1, 2 as above, but nothing is fused: theta = -1, v = 0, everybody is its own zeta.
    assert state.zeta.flatten().tolist() == [1.0, 2.0]
    assert info.cluster.tolist() == [0, 1]
    state, _ = fpfc.round(state, clients.at("round", 1, round=1))
    # omega = 1 + 3/4 and 2 + 6/4: delta = -7/4, beyond 3/2 where SCAD bends: s = (1 - 3.7 / (2.7 *
    # 2 * 7/4)) / (1 - 1 / (2.7 * 2)), theta = s delta, v = 2 (1 - s) delta.
    assert state.omega.flatten().tolist() == [1.75, 3.5]
    s = (1 - 3.7 / (2.7 * 2 * 1.75)) / (1 - 1 / (2.7 * 2))
    assert state.zeta[0].item() == pytest.approx((1.75 + 3.5 - (2 * s - 1) * 1.75) / 2)
    with pytest.raises(
        SettingError, match="`apart` of FPFC needs a `lam` of your own, got 3 and 0"
    ):
        FPFC(apart=3)


def test_the_text_updates_only_pairs_of_two_participants():
    clients = simulator([4, 8], draws=[0])
    fpfc = FPFC(**HAND, pairs="both")
    state = fpfc.init(start_of(clients))
    state, _ = fpfc.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    # theta = v = 0 still: zeta_1 = zeta_2 = mean(1, 0).
    assert state.omega.flatten().tolist() == [1.0, 0.0]
    assert state.zeta.flatten().tolist() == [0.5, 0.5]


def test_fpfc_l1_by_hand():
    clients = simulator([40, 80], draws=[0])
    fpfc = FPFCL1(**HAND)
    state, _ = fpfc.round(fpfc.init(start_of(clients)), clients.at("round", 0))
    # omega = 10, 20; delta = -10; theta = -9.5 and v = -1: the pull never ends.
    # zeta_1 = mean(10, 20 - 9.5 + 0.5).
    assert state.zeta.flatten().tolist() == [10.5, 19.5]
    clients, scad = simulator([40, 80], draws=[0]), FPFC(**HAND)
    state, _ = scad.round(scad.init(start_of(clients)), clients.at("round", 0))
    assert state.zeta.flatten().tolist() == [10.0, 20.0]  # parted: nobody is pulled


def test_a_device_goes_on_from_its_own_model():
    clients = simulator([4], draws=[0])
    fpfc = FPFC(**HAND)
    state = fpfc.init(start_of(clients))
    for t in range(2):
        state, _ = fpfc.round(state, clients.at("round", t))
    assert state.omega.item() == 1 + 0.75  # zeta is its own model, so only y pulls


def test_absent_pairs_keep_theta():
    """A public code reset theta of absent pairs to zero in every round."""
    clients = simulator([4, 8, 20], draws=[0])
    fpfc = FPFC(**HAND)
    state, _ = fpfc.round(fpfc.init(start_of(clients)), clients.at("round", 0))
    after, _ = fpfc.round(state, clients.at("round", 1, ids=torch.tensor([2])))
    pair = int(torch.nonzero(after.pair == 1))  # devices 0 and 1, neither of which took part
    before = int(torch.nonzero(state.pair == 1))
    assert after.delta[pair] == state.delta[before] != 0
    assert after.scale[pair] == state.scale[before] == 0.5


def test_only_the_named_part_is_fused_and_the_rest_is_averaged():
    federation, task = coterie.load("rotated-digits", clients=8, seed=0)
    fpfc = FPFC(part="head", lam=0.5, steps=2)
    run = coterie.simulate(fpfc, federation, task, rounds=2)
    state: State = run.state
    head = task.layout.part("head")
    assert state.omega.shape == (8, int(head.sum()))
    assert (run.models[:, ~head] == state.trunk).all()
    table = run.bytes.table()["FPFC.train"]
    assert table["down"]["zeta"] == 8 * 4 * int(head.sum())


def test_a_trunk_is_the_mean_over_participants():
    # One layer is fused, the other averaged: y = u w x, from u = w = 1 on x = 1 and y = 0.
    module = torch.nn.Sequential(
        torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    )
    task = coterie.Regression(module, draw=lambda generator: torch.ones(2))
    run = coterie.simulate(
        FPFC(part="head", lam=1.0, lr=0.125, steps=1), line([0, 2]), task, rounds=1
    )
    # Gradients of (u w - y)^2 at 1: 2 for y = 0 and -2 for y = 2: u and w move by 1/4 each.
    assert run.state.trunk.tolist() == [1.0]
    assert run.state.omega.flatten().tolist() == [0.75, 1.25]


def test_a_must_leave_the_proximal_map_one_minimum():
    with pytest.raises(SettingError, match=r"`a` of FPFC must be greater than 3, got 3"):
        FPFC(rho=0.5, a=3.0)
