import pytest
import torch
from torch import nn

import coterie
from coterie import Classification, FeSEM, FeSEMMA
from coterie.algorithms.fesem_ma import State
from coterie.core.errors import SettingError
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, start_of
from tests.vectors.test_matching import Residual


def two_units(targets):
    """Clients whose model is v . tanh(u x): the flat vector is (u_1, u_2, v_1, v_2)."""
    module = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False))
    return Simulator(line(targets).train, coterie.Regression(module))


def test_distance_and_mean_after_matching_by_hand():
    # (u, v) of units: the second model is the first with its units exchanged, a little changed. To
    # the centre (1, 3 | 2, 4) it is (1.2, 3 | 2, 4.4) and not (3, 1.2 | 4.4, 2).
    task = two_units([0]).task
    models = torch.tensor([[1.0, 3.0, 2.0, 4.0], [3.0, 1.2, 4.4, 2.0]])
    matched = FeSEMMA().matched(task, models, models[:1])
    torch.testing.assert_close(matched[1], torch.tensor([1.2, 3.0, 2.0, 4.4]))
    # With a centre that has the other order, each is matched to the one it is nearest to.
    centres = torch.tensor([[1.0, 3.0, 2.0, 4.0], [9.0, 1.0, 9.0, 2.0]])
    assert torch.equal(FeSEMMA().matched(task, models[1:], centres), matched[1:])
    assert torch.equal(FeSEMMA(match=False).matched(task, models, centres), models)


def test_a_round_averages_matched_models():
    # Both clients fit their target already and stay: from centre 0 and from its mirror image.
    clients = two_units([0, 0])
    centre = torch.tensor([0.0, 1.0, 1.0, 0.0])  # v . tanh(u) = 0
    mirrored = torch.tensor([1.0, 0.0, 0.0, 1.0])
    before = State(torch.stack([centre, mirrored + 5]), torch.tensor([0, 0]))
    after, info = FeSEMMA(lr=0.1, steps=1).round(before, clients.at("round", 0))
    assert info.cluster.tolist() == [0, 0]
    torch.testing.assert_close(after.models[0], centre)
    assert torch.equal(after.models[1], mirrored + 5)


def small_digits():
    return coterie.load("rotated-digits", clients=40, hidden=30)


@pytest.mark.parametrize("match", [True, False])
def test_from_a_common_start_it_is_fesem(match):
    federation, task = small_digits()
    one, other = (
        coterie.simulate(algorithm, federation, task, rounds=3, evaluate=3)
        for algorithm in (FeSEMMA(k=4, match=match), FeSEM(k=4))
    )
    assert torch.equal(one.models, other.models)
    assert torch.equal(one.clusters, other.clusters)


@pytest.mark.parametrize("seed", [0, 1])
def test_from_a_permutation_of_each_clients_own_only_matching_finds_the_clusters(seed):
    federation, task = small_digits()
    matched, plain = (
        coterie.simulate(
            FeSEMMA(k=4, begin="permuted", match=match), federation, task, rounds=5, seed=seed
        )
        for match in (True, False)
    )
    assert matched.metrics["ari"] == 1.0
    assert plain.metrics["ari"] < 0.1


def test_permuted_clients_are_matched_back_exactly():
    federation, task = small_digits()
    permuted, common = (
        coterie.simulate(FeSEMMA(k=4, begin=begin), federation, task, rounds=3, evaluate=3)
        for begin in ("permuted", "common")
    )
    assert torch.equal(permuted.clusters, common.clusters)
    torch.testing.assert_close(permuted.models, common.models, rtol=1e-4, atol=1e-5)


def test_clients_begin_with_what_is_said():
    federation, task = small_digits()
    clients, model = Simulator(federation.train, task), task.draw(torch.Generator())
    began = {}
    for begin in ("common", "permuted", "own"):
        cohort = clients.cohort(torch.arange(3), 0, (0,))
        began[begin] = FeSEMMA(begin=begin)._begun(cohort, model)
    assert torch.equal(began["common"], model.expand(3, -1))
    for begin in ("permuted", "own"):
        assert len(torch.cat([model[None], began[begin]]).unique(dim=0)) == 4
    loss = clients.cohort(torch.arange(3), 0, (0,)).loss(
        torch.cat([model[None], began["permuted"]])
    )
    torch.testing.assert_close(loss, loss[:, :1].expand(-1, 4), rtol=1e-5, atol=1e-5)
    assert torch.equal(began["permuted"].sort(1).values[0], model.sort().values)


def test_different_initialisations_are_not_repaired():
    federation, task = small_digits()
    for match in (True, False):
        run = coterie.simulate(
            FeSEMMA(k=4, begin="own", match=match), federation, task, rounds=5, evaluate=5
        )
        assert run.metrics["ari"] < 0.1


def test_networks_without_an_order_of_units_to_match_are_refused():
    module = nn.Sequential(nn.Linear(64, 4), Residual(), nn.Linear(4, 10))
    federation, _ = coterie.load("rotated-digits", clients=8)
    with pytest.raises(SettingError, match="hidden units can be matched in stacks"):
        FeSEMMA().init(start_of(Simulator(federation.train, Classification(module))))
