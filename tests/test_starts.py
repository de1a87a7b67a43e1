import warnings
from dataclasses import replace

import pytest
import torch

import coterie
from coterie import IFCA, CoterieWarning, HypCluster, starts
from coterie.core.errors import CoterieError, DataError, SettingError
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings
from tests.algorithms.lines import simulator, start_of


def started(policy, targets, draws, **settings):
    ifca = IFCA(k=2, lr=0.25, steps=1, start=policy, **settings)
    return ifca.init(start_of(simulator(targets, draws=draws))).models.flatten().tolist()


def test_random_takes_the_draws_as_they_are():
    assert started("random", [1, 3], draws=[5, 7]) == [5, 7]


def test_farthest_lets_the_worst_served_client_teach():
    # The random model 0 serves the client at 8 worst; trained there it is at 4 after one round.
    # Now the client at -5 is served worst and teaches the second model: -2.5.
    models = started("farthest", [1, 8, -5], draws=[0], start_rounds=1)
    assert models == [4.0, -2.5]


def test_restarts_keep_the_draw_with_the_lowest_loss():
    # After one round the draws (1, 2) and (1, -2) fit clients at 1 and -2 differently well.
    models = started("restarts", [1, -2], draws=[1, 2, 1, -2, 5, 6], tries=3, start_rounds=1)
    assert models == [1.0, -2.0]


def test_reject_redraws_until_every_cluster_has_its_share():
    # (0, 9) puts all three clients at -1, 1, 2 in the first cluster; (-1, 2) splits them 1 to 2,
    # which is less than 35 % for the smaller one; (0, 2) also; with four clients (-1, 2) is half.
    models = started("reject", [-1, -2, 1, 2], draws=[0, 9, -1, 2], tries=10)
    assert models == [-1.0, 2.0]


def test_reject_gives_up_with_a_warning_and_the_best_draw():
    with pytest.warns(CoterieWarning, match="none of 2 draws gave each cluster 35%"):
        models = started("reject", [-1, 1, 1, 1], draws=[0, 9, -1, 1], tries=2)
    assert models == [-1.0, 1.0]


def test_warm_trains_each_model_on_its_own_share_of_clients():
    # Four clients at one place: whatever the split, both models move half way there.
    assert started("warm", [4, 4, 4, 4], draws=[0, 2], start_rounds=1) == [2.0, 3.0]


def test_random_models_differ():
    federation, task = coterie.load("rotated-digits", clients=8)
    run = coterie.simulate(IFCA(k=3, start="random"), federation, task, rounds=1)
    start = coterie.core.algorithm.Start(run.training.participants, task, 8, seed=0)
    models = start.models(3)
    assert len({tuple(model.tolist()) for model in models}) == 3
    assert not torch.equal(start.models(3, attempt=1), models)


def brought(targets, w):
    """Clients on a line, and a network that brings the weight w."""
    clients = simulator(targets)
    torch.nn.init.constant_(clients.task.module.weight, w)
    return start_of(clients)


@pytest.mark.parametrize(("policy", "models"), [("farthest", [4.0, -2.5]), ("warm", [2.0, 2.0])])
def test_policies_that_need_one_model_begin_with_what_the_network_brings(policy, models):
    # As above; by warm each model is trained half way to its client, all of which are at 4.
    targets = [1, 8, -5] if policy == "farthest" else [4, 4, 4, 4]
    ifca = IFCA(k=2, lr=0.25, steps=1, start=policy, start_rounds=1)
    assert ifca.init(brought(targets, 0.0)).models.flatten().tolist() == models


@pytest.mark.parametrize("algorithm", [IFCA, HypCluster])
@pytest.mark.parametrize("policy", ["random", "restarts", "reject"])
def test_policies_that_need_several_draws_refuse_a_network_that_brings_its_weights(
    algorithm, policy
):
    with pytest.raises(SettingError, match="a function that builds the network anew, or"):
        algorithm(k=2, start=policy).init(brought([1, 2], 0.0))


@pytest.mark.parametrize("policy", starts.POLICIES)
def test_as_many_given_models_as_clusters_are_the_start(policy):
    start = replace(start_of(simulator([1, 2])), initial=torch.tensor([[3.0], [5.0]]))
    for kind in (IFCA, HypCluster):
        assert kind(k=2, start=policy).init(start).models.flatten().tolist() == [3, 5]


def test_a_function_that_builds_the_network_is_drawn_anew():
    class Custom(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64, 10))

        def forward(self, x):
            return x.flatten(1) @ self.weight

    federation, _ = coterie.load("rotated-digits", clients=8)
    run = coterie.simulate(IFCA(k=2), federation, coterie.Classification(Custom), rounds=1)
    assert not torch.equal(run.models[0], run.models[1])


def test_a_start_without_any_answer_says_so():
    federation, task = coterie.load("rotated-digits", clients=4)
    with pytest.raises(CoterieError, match="no client answered during the start"):
        coterie.simulate(IFCA(k=2), federation, task, rounds=1, lost=0.999999)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("distance", [0.0, 0.25, 0.4])
def test_near_truth_is_as_far_from_it_as_asked(groups, distance):
    for seed in range(3):
        federation, task = coterie.load(
            "linear-mixture", clients=8, features=20, groups=groups, seed=seed
        )
        ifca = IFCA(k=groups, start="near-truth", start_distance=distance)
        run = coterie.Run(ifca, federation, task, RunSettings(rounds=1, seed=seed))
        run.training.begin()
        truth = federation.truth
        separation = torch.pdist(truth).min() if groups > 1 else truth.norm()
        apart = (run.state.models - truth).norm(dim=1)
        torch.testing.assert_close(apart, (distance * separation).expand(groups))


def test_near_truth_is_refused_where_the_truth_is_unknown_or_other():
    federation, task = coterie.load("rotated-digits", clients=8)
    with pytest.raises(DataError, match="start=near-truth needs a federation whose true param"):
        coterie.simulate(IFCA(k=4, start="near-truth"), federation, task, rounds=1)
    federation, task = coterie.load("linear-mixture", clients=8, features=20)
    for kind in (IFCA, HypCluster):
        with pytest.raises(SettingError, match=r"of their size, \[2, 20\], got \[3, 20\]"):
            coterie.simulate(kind(k=3, start="near-truth"), federation, task, rounds=1)


def test_greedy_keeps_the_models_by_which_most_clients_gain():
    # Clients at 1, 1, 1, -4 and, as it were an adversary, 90 teach models .5, .5, .5, -2 and 45:
    # from 0 half the way. Under 0 their losses are 1, 1, 1, 16, 8100, so that they can gain
    # 1 - .25 = .75 three times, 16 - 4 = 12 and 8100 - 2025; the median is .75, and nobody counts
    # for more. By .5 those at 1 gain .75, that at 90 too (8010.25), that at -4 nothing: 3. By -2
    # that at -4 gains .75, by 45 that at 90. So .5 is kept first, and then -2: 45 adds nothing.
    assert started("greedy", [1, 1, 1, -4, 90], draws=[0], start_rounds=1) == [0.5, -2.0]


def test_models_are_the_centres_of_what_clients_make_of_one_model():
    # From 0 half the way to each client in every round: after two rounds 3/4 of it. The client at
    # 90 is an outlier; the others are in two clusters.
    targets = [1, 1.2, 1.1, 1.3, -4, -4.2, -4.1, -4.3, 90]
    for kind in (IFCA, HypCluster):
        policy = kind(k=2, lr=0.25, steps=1, start="models", start_rounds=2)
        start = start_of(simulator(targets, draws=[0]))
        models = policy.init(start).models.flatten().sort().values
        assert models.tolist() == pytest.approx([-4.15 * 0.75, 1.15 * 0.75])
        assert start.teachers == list(range(8))


@pytest.mark.parametrize("policy", ["greedy", "models"])
def test_all_clusters_are_found_without_attack(policy):
    federation, task = coterie.load("rotated-digits", clients=40, hidden=20, seed=0)
    for seed in range(3):
        ifca = IFCA(k=4, start=policy, lr=0.3)
        run = coterie.simulate(ifca, federation, task, rounds=1, seed=seed)
        if policy == "greedy":
            taught = federation.cluster[run.result["teachers"]]
            assert sorted(taught.tolist()) == [0, 1, 2, 3]
        assert run.metrics["ari"] == 1.0


@pytest.mark.parametrize("share", ["joint", "frozen"])
def test_models_are_fitted_on_the_trunk_that_clusters_share(share):
    federation, task = coterie.load("rotated-digits", clients=12, rotations=2, hidden=8)
    ifca = IFCA(k=2, start="models", share=share, trunk_rounds=1, start_rounds=2)
    run = coterie.simulate(ifca, federation, task, rounds=1, lost=0.3)
    assert run.state.models.shape == (2, 8 * 10 + 10)
    assert bool(run.models.isfinite().all())


def test_an_attacker_is_never_a_teacher_under_greedy_and_always_under_farthest():
    federation, task = coterie.load("rotated-digits", clients=40, hidden=20, seed=1)
    taught = {}
    for policy in ("farthest", "greedy"):
        ifca = IFCA(k=4, start=policy, lr=0.3)
        settings = RunSettings(rounds=1, seed=1, attack="boosted", attackers=0.1)
        run = coterie.Run(ifca, federation, task, settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.training.begin()
        said = [str(each.message) for each in caught]
        assert any("start=farthest lets the worst" in text for text in said) == (
            policy == "farthest"
        )
        attackers = run.training.participants.attackers
        taught[policy] = int(attackers[run.training.teachers].sum())
        assert len(run.training.teachers) == 4
    assert taught["greedy"] == 0
    assert taught["farthest"] > 0


def test_auto_is_farthest_unless_clients_may_attack():
    federation, task = coterie.load("rotated-digits", clients=8, hidden=4)
    for settings, policy in (
        ({}, "farthest"),
        ({"attack": "labels"}, "greedy"),
        ({"aggregate": "median"}, "greedy"),
        ({"screen": "norm"}, "greedy"),
    ):
        run = coterie.simulate(IFCA(k=2, start_rounds=1), federation, task, rounds=1, **settings)
        assert run.algorithm.start == policy
        assert run.config["settings"]["start"] == policy
    plan = make_plan(["ifca", "rotated-digits", "aggregate=median"])
    assert plan.algorithm.start == "greedy"
    assert make_plan(["ifca"]).algorithm.start == "farthest"
    assert make_plan(["hypcluster", "rotated-digits", "screen=lof"]).algorithm.start == "greedy"


def test_every_policy_is_offered():
    named = {"random", "restarts", "reject", "warm", "farthest", "greedy", "models", "near-truth"}
    assert set(starts.POLICIES) == named


def test_draws_that_coincide_by_chance_are_drawn_again():
    for seed in range(20):
        federation, task = coterie.load("linear-mixture", features=1, clients=4, seed=seed)
        run = coterie.simulate(
            IFCA(k=2, start="random", average="gradients"), federation, task, rounds=1, seed=seed
        )
        assert len(run.models) == 2


def test_every_judging_of_the_start_loses_its_own_replies():
    federation, task = coterie.load("rotated-digits", clients=16)
    settings = coterie.experiment.settings.RunSettings(lost=0.5, rounds=1)
    run = coterie.Run(IFCA(k=2), federation, task, settings)
    algorithm = IFCA(k=2)
    models = torch.stack([task.draw(torch.Generator().manual_seed(j)) for j in range(2)])
    trunk, clients = torch.zeros(0), run.training.participants
    answers = {
        tuple(clients.sample(0, 16).run(algorithm.losses, models=models, trunk=trunk)[0].tolist())
        for _ in range(4)
    }
    assert len(answers) == 4
