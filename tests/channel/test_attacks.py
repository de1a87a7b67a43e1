import pytest
import torch

import coterie
from coterie import IFCA, FedAvg
from coterie.algorithms import fedavg, ifca
from coterie.channel.attacks import AttackSettings, attack_filters, draw_attackers
from coterie.core.errors import CoterieError, SettingError
from coterie.registry import resolve
from coterie.vectors.folds import ByCluster
from tests.algorithms.lines import simulator


def attacked(targets, attackers, attack="boosted", **settings):
    """Clients on a line of whom some attack; a local step goes half the way to the target."""
    wanted = AttackSettings(attack=attack, labels="keep", **settings)
    mask = torch.tensor([i in attackers for i in range(len(targets))])
    alone, together = attack_filters(wanted, mask, len(targets))
    return simulator(targets).at("round").through(*alone).defended(*together)


def mean_after(clients, model=0.0):
    state, _ = FedAvg(lr=0.25, steps=1).round(fedavg.State(torch.tensor([model])), clients)
    return float(state.model)


def test_a_boosted_update_is_multiplied_by_the_clients_of_the_round():
    # From 0 the clients at 2, 4 and 8 come to 1, 2 and 4; the last sends 3 times 4.
    assert mean_after(attacked([2, 4, 8], [2])) == pytest.approx((1 + 2 + 12) / 3)
    assert mean_after(attacked([2, 4, 8], [2], factor=5.0)) == pytest.approx((1 + 2 + 20) / 3)


def test_what_is_boosted_is_the_update_or_the_weights():
    # From 2 the client at 8 comes to 5: its update is 3, its weight 5.
    assert mean_after(attacked([2, 2, 8], [2]), 2.0) == pytest.approx((2 + 2 + 11) / 3)
    weights = attacked([2, 2, 8], [2], boost="weights")
    assert mean_after(weights, 2.0) == pytest.approx((2 + 2 + 15) / 3)


def test_a_flipped_sign_goes_the_other_way():
    assert mean_after(attacked([2, 2, 8], [2], "sign-flip"), 2.0) == pytest.approx((4 - 1) / 3)
    ten = attacked([2, 2, 8], [2], "sign-flip", factor=10.0)
    assert mean_after(ten, 2.0) == pytest.approx((4 - 28) / 3)


def test_noise_takes_the_place_of_an_update_and_is_drawn_by_client_and_call():
    one, other = (mean_after(attacked([2, 2, 8], [2], "gaussian"), 2.0) for _ in range(2))
    assert one == other
    noise = 3 * one - 4 - 2
    assert noise != 0
    twice = mean_after(attacked([2, 2, 8], [2], "gaussian", factor=2.0), 2.0)
    assert 3 * twice - 4 - 2 == pytest.approx(2 * noise, rel=1e-4)


def test_inner_product_sends_the_opposite_of_the_honest_mean():
    # From 0 the honest clients move by 1 and 2, 1.5 on average.
    clients = attacked([2, 4, 100], [2], "inner-product", factor=10.0)
    assert mean_after(clients) == pytest.approx((1 + 2 - 15) / 3)


def test_a_little_is_the_honest_mean_less_some_deviations():
    clients = attacked([2, 4, 100], [2], "little", factor=2.0)
    assert mean_after(clients) == pytest.approx((1 + 2 + 1.5 - 2 * 0.5) / 3)


def ifca_after(clients, models):
    unknown = torch.full((clients.population,), -1)
    state = ifca.State(torch.tensor(models)[:, None], torch.empty(0), unknown, torch.tensor(0))
    after, info = IFCA(k=len(models), lr=0.25, steps=1).round(state, clients)
    return after.models.flatten().tolist(), info.cluster.tolist()


def test_each_cluster_has_an_origin_of_its_own():
    # Clusters at 0 and 10: the attacker at 12 comes to 11, and sends 10 + 4 (1).
    models, cluster = ifca_after(attacked([2, 2, 12, 12], [3]), [0.0, 10.0])
    assert cluster == [0, 0, 1, 1]
    assert models == pytest.approx([1.0, (11 + 14) / 2])


def test_attackers_may_all_join_the_smallest_cluster():
    # Honest: three in cluster 0, one in cluster 1. The attacker at 2 moved by 1 from 0: boosted by
    # 5 it joins cluster 1 with 10 + 5.
    clients = attacked([2, 2, 2, 12, 2], [4], joins="smallest")
    models, cluster = ifca_after(clients, [0.0, 10.0])
    assert cluster == [0, 0, 0, 1, 1]
    assert models == pytest.approx([1.0, (11 + 15) / 2])


def test_joined_attackers_act_on_the_honest_of_their_new_cluster():
    clients = attacked([2, 2, 2, 12, 2], [4], "inner-product", joins="smallest", factor=3.0)
    models, cluster = ifca_after(clients, [0.0, 10.0])
    assert cluster[4] == 1
    assert models == pytest.approx([1.0, (11 + 10 - 3) / 2])


def test_clients_who_are_served_are_not_attacked():
    clients = attacked([2, 2, 8], [2])
    clients.purpose = "serve"
    assert mean_after(clients) == pytest.approx((1 + 1 + 4) / 3)


def test_who_attacks_is_drawn_by_the_seed():
    ten = AttackSettings(attack="boosted", attackers=0.25)
    drawn = draw_attackers(ten, 40, seed=3)
    assert int(drawn.sum()) == 10
    assert torch.equal(drawn, draw_attackers(ten, 40, seed=3))
    assert not torch.equal(drawn, draw_attackers(ten, 40, seed=4))
    assert draw_attackers(AttackSettings(), 40, seed=3) is None


@pytest.mark.parametrize("share", [2, -1, 0, 1])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(SettingError, match="`attackers` of AttackSettings must lie between 0 and"):
        AttackSettings(attackers=float(share))


@pytest.mark.parametrize("flip", ["1", "a:b", "1:", "1>7"])
def test_labels_to_flip_are_two_numbers(flip):
    with pytest.raises(SettingError, match="`flip` must be two labels, as in 1:7"):
        AttackSettings(flip=flip)


@pytest.mark.filterwarnings("ignore:attackers are")
@pytest.mark.parametrize("attack", ["boosted", "sign-flip", "gaussian", "inner-product", "little"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "cfl", "one-shot", "fpfc", "ditto", "oracle"])
def test_every_algorithm_can_be_attacked(algorithm, attack):
    federation, task = coterie.load("rotated-digits", clients=8, hidden=4)
    kind = resolve("algorithm", algorithm)
    method = kind(lam=1.0) if algorithm == "fpfc" else kind()
    honest, wrong = (
        coterie.simulate(method, federation, task, rounds=2, attack=each, attackers=0.3)
        for each in ("none", attack)
    )
    assert not torch.equal(honest.models, wrong.models)
    assert wrong.clients["attacker"].sum() == 2


def test_an_origin_that_nobody_declared_is_asked_for():
    clients = attacked([2, 2, 8], [2])
    with pytest.raises(CoterieError, match="must be declared for an attack or a screen"):
        clients.run(FedAvg().train, fold=ByCluster(1), model=torch.zeros(1))
