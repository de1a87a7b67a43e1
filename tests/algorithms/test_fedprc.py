import pytest
import torch

import coterie
from coterie import FedPRC, FeSEM
from coterie.algorithms.fedprc import State
from coterie.evaluation.measures import clustering_scores
from tests.algorithms.boost import Boost, boosted_run
from tests.algorithms.lines import simulator, start_of

ATTACKERS = [1, 6, 11, 16]


def state(models, cluster):
    cluster = torch.tensor(cluster)
    return State(torch.tensor(models)[:, None], cluster, torch.zeros(len(cluster)).bool())


def digits():
    return coterie.load("rotated-digits", clients=40)


def honest_ari(run):
    honest = torch.tensor([i for i in range(40) if i not in ATTACKERS])
    return clustering_scores(run.clusters[honest], run.federation.cluster[honest])["ari"]


def test_a_round_by_hand():
    # Updates are half the way from the centre: 0, 1, 2 from 1; 0, -1 from -1; 50 from 1. With two
    # neighbours the factors are those of 0, 1, 2, 0, -1, 50: only the last is above 2 (far
    # above). Without it the means are 2 and -1.5.
    before = state([1.0, -1.0], [0, 0, 0, 1, 1, 0])
    fedprc = FedPRC(lr=0.25, steps=1, neighbours=2)
    after, info = fedprc.round(before, simulator([1, 3, 5, -1, -3, 101]).at("round", 0))
    assert after.excluded.tolist() == [False] * 5 + [True]
    assert info.excluded.tolist() == [5]
    assert info.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert info.cluster.tolist() == [0, 0, 0, 1, 1, 0]
    assert after.models.flatten().tolist() == [2.0, -1.5]


def test_an_outlier_among_updates_may_be_none_among_models():
    # Models 100, 101, 102 | -100, -101, -102, and client 2 came from the centre at -100: its update
    # is 202 long, but its model is in the middle of the others.
    before = state([100.0, -100.0], [0, 0, 1, 1, 1, 1])
    clients = simulator([100, 102, 304, -100, -102, -104])
    found = {}
    for lof in ("updates", "models"):
        fedprc = FedPRC(lr=0.25, steps=1, neighbours=2, lof=lof)
        after, info = fedprc.round(before, clients.at("round", 0))
        assert info.cluster.tolist() == [0, 0, 0, 1, 1, 1]
        found[lof] = after.excluded.tolist()
    assert found["updates"] == [False, False, True, False, False, False]
    assert found["models"] == [False] * 6


def test_a_cluster_of_outliers_keeps_its_centre():
    before = state([1.0, 60.0], [0, 0, 0, 0, 0])
    fedprc = FedPRC(lr=0.25, steps=1, neighbours=2)
    after, info = fedprc.round(before, simulator([1, 3, 5, 2, 151]).at("round", 0))
    assert info.cluster.tolist() == [0, 0, 0, 0, 1]
    assert after.models.flatten().tolist() == [1.875, 60.0]


def test_a_client_is_excluded_until_it_is_not():
    fedprc = FedPRC(k=1, lr=0.25, steps=1, neighbours=2)
    before = state([1.0], [0, 0, 0, 0, 0])._replace(excluded=torch.tensor([False] * 4 + [True]))
    clients = simulator([1, 3, 5, 2, 4])
    after, _ = fedprc.round(before, clients.at("round", 0, ids=torch.arange(4)))
    assert after.excluded.tolist() == [False] * 4 + [True]
    after, info = fedprc.round(after, clients.at("round", 1))
    assert after.excluded.tolist() == [False] * 5
    assert info.excluded.tolist() == []


def test_outliers_leave_before_the_first_clusters_are_found():
    # From 0 half the way: 0, 1, 2, 10, 11, 12 and 500, which as printed takes a centre.
    targets = [0, 2, 4, 20, 22, 24, 1000]
    settings = {"lr": 0.25, "steps": 1, "neighbours": 2, "threshold": 5.0}
    first = FedPRC(**settings).init(start_of(simulator(targets, draws=[0])))
    assert first.models.flatten().sort().values.tolist() == [1.0, 11.0]
    assert first.models[first.cluster].flatten().tolist() == [1, 1, 1, 11, 11, 11, 11]
    printed = FedPRC(**settings, order="printed").init(start_of(simulator(targets, draws=[0])))
    # The mean of its cluster is taken without it: the cluster keeps its centre, 500.
    assert printed.models.flatten().sort().values.tolist() == [6.0, 500.0]


def test_without_outliers_it_is_fesem_to_the_last_bit():
    federation, task = digits()
    one, other = (
        coterie.simulate(algorithm, federation, task, rounds=3)
        for algorithm in (FedPRC(k=4), FeSEM(k=4))
    )
    assert one.metrics["excluded"] == 0
    assert torch.equal(one.models, other.models)
    assert torch.equal(one.clusters, other.clusters)


def test_a_threshold_of_1_as_printed_excludes_about_half_of_the_honest():
    federation, task = digits()
    run = coterie.simulate(FedPRC(k=4, threshold=1.0), federation, task, rounds=5, evaluate=5)
    for record in run.records:
        assert 0.35 <= record["metrics"]["excluded"] <= 0.65
        assert len(record["excluded"]) == round(40 * record["metrics"]["excluded"])


def test_boosted_updates_are_left_out_and_the_printed_order_loses_the_clusters():
    federation, task = digits()
    run = boosted_run(FedPRC(k=4), federation, task, ATTACKERS, 40.0, rounds=4)
    assert run.state.excluded.nonzero().flatten().tolist() == ATTACKERS
    assert honest_ari(run) == 1.0
    printed = boosted_run(FedPRC(k=4, order="printed"), federation, task, ATTACKERS, 40.0, rounds=4)
    assert printed.state.excluded.nonzero().flatten().tolist() == ATTACKERS
    assert honest_ari(printed) < 0.1


@pytest.mark.parametrize(("lof", "found"), [("updates", True), ("models", False)])
def test_a_reversed_update_is_seen_among_updates_only(lof, found):
    """From trained centres, distances between clusters hide what ten reversed updates are."""
    federation, task = digits()
    run = coterie.simulate(FeSEM(k=4), federation, task, rounds=15, evaluate=15)
    before = State(run.models, run.clusters, torch.zeros(40, dtype=torch.bool))
    clients = run.population.at("round", 15).through(Boost(frozenset(ATTACKERS), -10.0))
    after, _ = FedPRC(k=4, lof=lof).round(before, clients)
    excluded = after.excluded.nonzero().flatten().tolist()
    assert excluded == (ATTACKERS if found else [])


@pytest.mark.parametrize(
    ("name", "settings"),
    [("leaf-generator", {"leaf_seed": 0, "groups": 4}), ("leaf-synthetic", {"most": 80})],
)
@pytest.mark.parametrize("attackers", [0.0, 0.1, 0.25])
def test_where_clients_differ_few_honest_ones_are_left_out(name, settings, attackers):
    """Most of their updates become short, and some stay long: no density like that of images."""
    federation, task = coterie.load(name, clients=120, seed=5, **settings)
    attack = {"attack": "boosted", "attackers": attackers} if attackers else {}
    fedprc = FedPRC(k=4, lr=0.1, steps=10)
    run = coterie.simulate(fedprc, federation, task, rounds=30, seed=5, **attack)
    name = "false_exclusion" if attackers else "excluded"
    assert run.metrics[name] <= 0.07
    if attackers:
        assert run.metrics["detection_recall"] >= 0.8


def test_models_that_are_not_finite_are_left_out():
    federation, task = digits()
    run = boosted_run(FedPRC(k=4), federation, task, ATTACKERS, torch.inf, rounds=2)
    assert bool(run.models.isfinite().all())
    assert run.state.excluded.nonzero().flatten().tolist() == ATTACKERS
