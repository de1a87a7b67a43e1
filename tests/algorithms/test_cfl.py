import pytest
import torch
from torch import nn

import coterie
from coterie import CFL, Classification, FedAvg, Federation, checks
from coterie.algorithms.cfl import State
from coterie.channel.lost_replies import LoseReplies
from coterie.core.clients import Each
from coterie.core.errors import SettingError
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator, start_of

# A step of 1/4 goes half the way, so that dW_i = (y_i - w) / 2.
HALF = {"lr": 0.25, "steps": 1, "thresholds": "absolute", "wait": 1}
PAIRS = [8, -8, 4, -4, 8, -8, 4, -4]


def state(models, cluster, scale=(1.0, 1.0)):
    """Clients in their clusters, none of which missed a split."""
    cluster = torch.tensor(cluster)
    maybe = cluster[:, None] == torch.arange(len(models))
    return State(torch.tensor(models).view(-1, 1), cluster, maybe, torch.tensor(scale))


def check_partition(now, m):
    """Every client is in exactly one cluster that exists, and one that is possible for it."""
    assert now.cluster.shape == (m,)
    assert now.maybe.shape == (m, len(now.models))
    assert now.maybe[torch.arange(m), now.cluster].all()


def test_the_first_rounds_are_fedavg_and_set_the_scale():
    # From 0 the updates are 0.5, 1.5 and -1: their mean is 1/3, the largest norm 1.5.
    clients = simulator([1, 3, -2], draws=[0])
    cfl = CFL(lr=0.25, steps=1, wait=2)
    after, info = cfl.round(cfl.init(start_of(clients)), clients.at("round", 0))
    assert after.models.flatten().tolist() == pytest.approx([1 / 3])
    assert after.scale.tolist() == pytest.approx([1 / 3, 1.5])
    assert (info.cluster.tolist(), info.clusters) == ([0, 0, 0], 1)
    # In the next the mean is smaller, the update of the third (-2 - 1/3) / 2 no larger: both stay
    # at the largest of what was seen, or rise to it.
    after, _ = cfl.round(after, clients.at("round", 1, round=1))
    assert after.scale.tolist() == pytest.approx([1 / 3, 1.5])


def test_a_split_by_hand():
    # From 0 the updates are -1.5, -1.5, 1, 1, 1: their mean is 0 and the largest norm 1.5. The
    # three on the right are more and keep the number 0. Each child goes on with its own mean.
    cfl = CFL(**HALF, eps1=0.1, eps2=1.4)
    clients = simulator([-3, -3, 2, 2, 2]).at("round", 1, round=1)
    after, info = cfl.round(state([0.0], [0] * 5), clients)
    assert after.models.flatten().tolist() == pytest.approx([1.0, -1.5])
    assert after.cluster.tolist() == info.cluster.tolist() == [1, 1, 0, 0, 0]
    assert after.maybe.tolist() == [[False, True]] * 2 + [[True, False]] * 3
    assert info.clusters == 2


@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        ({}, True),
        ({"eps1": 0.04}, False),  # from 0.1 the mean update is -0.05
        ({"eps2": 1.6}, False),  # the largest norm is 1.55
        ({"wait": 2}, False),
        ({"members": 5}, True),
        ({"members": 6}, False),
        ({"gamma": 0.99}, True),  # updates to the left and to the right have cosine -1:
        ({"gamma": 1.0}, False),  # sqrt((1 + 1) / 2) = 1, which is not above gamma
    ],
)
def test_each_condition_of_a_split(settings, splits):
    cfl = CFL(**{**HALF, "eps1": 0.06, "eps2": 1.5, **settings})
    clients = simulator([-3, -3, 2, 2, 2]).at("round", 1, round=1)
    after, _ = cfl.round(state([0.1], [0] * 5), clients)
    assert len(after.models) == (2 if splits else 1)
    if not splits:
        assert after.models.item() == pytest.approx(0.05)


def test_clients_that_agree_are_never_split():
    cfl = CFL(**HALF, eps1=9, eps2=0, contrast=0)
    clients = simulator([1, 1, 1, 1]).at("round", 1, round=1)
    assert len(cfl.round(state([0.0], [0] * 4), clients)[0].models) == 1


def test_groups_that_differ_no_more_than_their_members_are_not_split():
    # Eight clients without anything in common: their updates point anywhere.
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(9, 50, generator=generator), torch.ones(9)) for _ in range(8)]
    noise = Simulator(
        Federation.from_clients(clients).train, coterie.Regression(nn.Linear(50, 1, bias=False))
    )
    before = State(
        torch.zeros(1, 50), torch.zeros(8).long(), torch.ones(8, 1).bool(), torch.ones(2)
    )
    for contrast, k in ((0.0, 2), (4.0, 1)):
        cfl = CFL(lr=0.1, steps=1, thresholds="absolute", eps1=9, eps2=0, wait=1, contrast=contrast)
        assert len(cfl.round(before, noise.at("round", 1, round=1))[0].models) == k


@pytest.mark.parametrize(
    "schedule", [{"decay": 0.5}, {"schedule": "cosine", "schedule_rounds": 3}], ids=str
)
def test_fractions_are_of_the_first_norms_without_the_decay(schedule):
    # In round 2 the step is a quarter of the first: updates of +-1 where the first were +-4.
    clients = simulator([8, -8, 8, -8]).at("round", 2, round=2)
    before = state([0.0], [0] * 4, scale=(1.0, 4.0))
    for eps2, k in ((0.9, 2), (1.1, 1)):
        cfl = CFL(lr=0.25, steps=1, **schedule, wait=1, eps1=0.1, eps2=eps2)
        assert len(cfl.round(before, clients)[0].models) == k
    # The updates are 1 and -1/2, the mean is 1/4, and 1 without the decay: half of the first.
    clients = simulator([8, -4, 8, -4]).at("round", 2, round=2)
    for eps1, k in ((0.6, 2), (0.4, 1)):
        cfl = CFL(lr=0.25, steps=1, **schedule, wait=1, eps1=eps1, eps2=0.1)
        after, _ = cfl.round(state([0.0], [0] * 4, scale=(2.0, 4.0)), clients)
        assert len(after.models) == k


def test_two_levels_of_splits_by_hand():
    cfl = CFL(**HALF, eps1=0.8, eps2=1.0)
    clients, now = simulator(PAIRS, draws=[0]), None
    now, seen = cfl.init(start_of(clients)), []
    for t in range(5):
        now, info = cfl.round(now, clients.at("round", t, round=t))
        check_partition(now, 8)
        assert now.cluster.tolist() == info.cluster.tolist()
        seen.append((now.models.flatten().tolist(), now.cluster.tolist()))
    # Round 0 waits, the mean update is 0. Round 1: updates 4, -4, 2, -2, ... part by their sign;
    # the means of the children are 3 and -3. Round 2: from 3 the mean update is 1.5, too large.
    # Round 3: from 4.5 the updates are 1.75 and -0.25, their mean 0.75: the clients 2 and 6, which
    # are in places 1 and 3 of their cluster, leave it. Round 4: two clients are too few.
    assert seen[0] == ([0.0], [0] * 8)
    assert seen[1] == ([3.0, -3.0], [0, 1] * 4)
    assert seen[2] == ([4.5, -4.5], [0, 1] * 4)
    assert seen[3] == ([6.25, -6.25, 4.25, -4.25], [0, 1, 2, 3] * 2)
    assert seen[4] == ([7.125, -7.125, 4.125, -4.125], [0, 1, 2, 3] * 2)


def test_absent_clients_keep_their_cluster_and_find_their_child_when_they_come_back():
    cfl = CFL(**HALF, eps1=0.8, eps2=1.0)
    clients, now = simulator(PAIRS), state([0.0], [0] * 8)

    def went(now, t, *ids):
        return cfl.round(now, clients.at("round", t, round=t, ids=torch.tensor(ids)))

    # Without 6 and 7 the updates are 4, -4, 2, -2, 4, -4; children at 10/3 and -10/3.
    now, _ = went(now, 1, 0, 1, 2, 3, 4, 5)
    check_partition(now, 8)
    assert now.cluster.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]
    assert now.maybe[6:].all()
    assert now.models.flatten().tolist() == pytest.approx([10 / 3, -10 / 3])

    # 7, which wants -4, comes back alone, finds the model at -10/3 and takes it half the way.
    now, info = went(now, 2, 7)
    check_partition(now, 8)
    assert (info.ids.tolist(), info.cluster.tolist()) == ([7], [1])
    assert now.maybe[7].tolist() == [False, True]
    assert now.models.flatten().tolist() == pytest.approx([10 / 3, -11 / 3])

    # 6 is still away: it is served, on its own data, by the better of the two.
    assert now.maybe[6].all()
    assert cfl.serve(now, clients.at("serve")).cluster.tolist() == [0, 1] * 4


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_who_missed_a_split_and_does_not_answer_is_not_served(seed, rate):
    """As it was, shapes did not match where one of several did not answer."""
    before = state([0.0, 4.0, -4.0], [0, 1, 2, 0, 0, 0])
    before.maybe[3:] = True
    clients = simulator([0, 4, -4, 4, -4, 0]).at("serve", seed)
    serving = CFL(**HALF).serve(before, clients.through(LoseReplies(rate)))
    known = dict(zip(serving.ids.tolist(), serving.cluster.tolist(), strict=True))
    assert known.items() <= {0: 0, 1: 1, 2: 2, 3: 1, 4: 2, 5: 0}.items()
    assert {0, 1, 2} <= known.keys(), "who is in a cluster need not answer"
    assert rate < 1 or len(known) == 3


def test_a_client_comes_back_only_to_where_its_cluster_went():
    # Client 0 was in cluster 0 when 2 split off; the model that suits it best is not its own.
    before = state([0.0, 10.0, 6.0], [0, 1, 2])
    before = before._replace(maybe=torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 1]]).bool())
    clients = simulator([10, 10, 6])
    cfl = CFL(**HALF)
    serving = cfl.serve(before, clients.at("serve"))
    assert serving.cluster.tolist() == [2, 1, 2]
    after, info = cfl.round(before, clients.at("round", 0))
    assert info.cluster.tolist() == [2, 1, 2]
    # 0 goes from 6 half the way to 10, 2 stays: the mean is 7.
    assert after.models.flatten().tolist() == [0.0, 10.0, 7.0]


def test_a_client_whose_possible_models_have_diverged_still_gets_one_of_them():
    before = state([0.0, torch.inf, torch.inf], [1, 0])
    before = before._replace(maybe=torch.tensor([[0, 1, 1], [1, 0, 0]]).bool())
    assert CFL(**HALF).serve(before, simulator([1, 1]).at("serve")).cluster.tolist() == [1, 0]


def test_a_split_that_a_client_missed_twice_leaves_it_all_grandchildren():
    cfl = CFL(**HALF, eps1=0.1, eps2=0.1)
    clients = simulator([-3, -1, 1, 3, -3, -1, 1, 3, 3])
    now = state([0.0], [0] * 9)
    now, _ = cfl.round(now, clients.at("round", 1, round=1, ids=torch.arange(8)))
    assert now.models.flatten().tolist() == [-1.0, 1.0]
    # Clusters at rest at -2 and 2, with updates of +-1/2, split once more without client 8.
    now = now._replace(models=torch.tensor([[-2.0], [2.0]]))
    now, _ = cfl.round(now, clients.at("round", 2, round=2, ids=torch.arange(8)))
    check_partition(now, 9)
    assert now.models.shape == (4, 1)
    assert now.maybe[8].all()
    assert now.maybe[:8].sum(1).tolist() == [1] * 8
    # It wants 3 and so do 3 and 7.
    _, info = cfl.round(now, clients.at("round", 3, round=3))
    assert info.cluster[8] == info.cluster[3] == info.cluster[7]


def test_lost_replies_count_as_absent():
    federation, task = coterie.load("rotated-digits", clients=16)
    cfl = CFL(eps1=10, eps2=0.01, wait=1, contrast=0)
    run = coterie.simulate(cfl, federation, task, rounds=4, fraction=0.6, lost=0.4)
    check_partition(run.state, 16)
    assert len(run.models) > 2
    assert sorted(set(run.state.cluster.tolist())) == list(range(len(run.models)))


def test_an_empty_cluster_keeps_its_model():
    clients = simulator([1, 3]).at("round", 0, ids=torch.tensor([0]))
    after, _ = CFL(**HALF).round(state([0.0, 0.3], [0, 1]), clients)
    assert after.models.flatten().tolist() == [0.5, torch.tensor(0.3).item()]


def test_means_are_over_the_cluster_and_by_size():
    # Cluster 0: from 0 to 1 and 3 with sizes 3 and 1; cluster 1: from 5 to 5 three times.
    clients = simulator([2, 6, 5, 5, 5], sizes=[3, 1, 1, 1, 1]).at("round", 0)
    for weighting, expected in (("equal", 2.0), ("size", 1.5)):
        cfl = CFL(**HALF, weighting=weighting)
        after, _ = cfl.round(state([0.0, 5.0], [0, 0, 1, 1, 1]), clients)
        assert after.models.flatten().tolist() == [expected, 5.0]


def test_without_splits_it_is_fedavg():
    federation, task = coterie.load("rotated-digits", clients=8)
    for weighting in ("equal", "size"):
        settings = {"steps": 3, "lr": 0.2, "weighting": weighting, "batch": 16}
        cfl, fedavg = (
            coterie.simulate(algorithm, federation, task, rounds=3, fraction=0.5)
            for algorithm in (CFL(**settings), FedAvg(**settings))
        )
        torch.testing.assert_close(cfl.models, fedavg.models)


def test_running_statistics_are_averaged_but_have_no_say():
    torch.manual_seed(0)
    clients = [(torch.randn(12, 4) * 9, torch.randint(2, (12,))) for _ in range(4)]
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    task = Classification(network)
    clients = Simulator(Federation.from_clients(clients).train, task)
    cfl = CFL()
    before = cfl.init(start_of(clients))
    after, _ = cfl.round(before, clients.at("round", 0))
    _, up = clients.at("round", 0).run(
        cfl.train, model=Each(before.models, before.cluster), cluster=Each(before.cluster)
    )
    torch.testing.assert_close(after.models[0], before.models[0] + up.update.mean(0))
    norm = up.update[:, : task.layout.trained_size].norm(dim=1).max()
    assert after.scale[1].item() == pytest.approx(norm.item())
    assert up.update.norm(dim=1).max() > 2 * norm


def test_unseen_clients_take_the_model_with_the_lowest_loss():
    before = state([0.0, 10.0], [0, 1])
    newcomers = Simulator(line([9, 1]).train, simulator([1]).task, first=2, population=2)
    assert CFL().serve(before, newcomers.at("serve")).cluster.tolist() == [1, 0]


def test_who_missed_no_split_is_served_without_being_asked():
    # By its loss client 0 would take model 1.
    before = state([0.0, 10.0], [0, 1])
    assert CFL().serve(before, simulator([9, 1]).at("serve")).cluster.tolist() == [0, 1]


@pytest.mark.parametrize(
    "setting",
    [{"eps1": 0.0}, {"thresholds": "half"}, {"linkage": "average"}, {"members": 1}, {"wait": 0}],
)
def test_bad_settings_are_refused(setting):
    with pytest.raises(SettingError, match=f"`{next(iter(setting))}` of CFL must"):
        CFL(**setting)


@pytest.mark.parametrize(("clients", "fraction"), [(24, 1.0), (48, 0.5)])
def test_four_rotations_are_recovered_by_two_levels_of_splits(clients, fraction):
    federation, task = coterie.load("rotated-digits", clients=clients, samples=60, hidden=30)
    cfl = CFL(lr=0.3)
    run = coterie.simulate(cfl, federation, task, rounds=30, fraction=fraction, evaluate=30)
    assert run.metrics["ari"] == 1.0
    assert len(run.models) == 4
    check_partition(run.state, clients)


def test_unseen_clients_are_served_the_one_model_before_any_split():
    unsplit = CFL(wait=100)
    assert len(checks.short_run(unsplit, checks.small_federation()).models) == 1
    checks.unseen_clients_are_served(unsplit)
