import pytest
import torch
from torch import nn

import coterie
from coterie import FedAvg, FeSEM, Regression
from coterie.algorithms.fesem import State, smallest_good_k
from coterie.channel.lost_replies import LoseReplies
from coterie.channel.metering import ByteMeter
from coterie.checks import (
    CHECKS,
    any_network_will_do,
    order_of_clients_does_not_matter,
)
from coterie.core.errors import CoterieError, SettingError
from coterie.engine.simulator import Simulator
from tests.algorithms.lines import line, simulator, start_of


def state(models, cluster):
    models = torch.tensor(models).view(len(models), -1)
    return State(models, torch.tensor(cluster), torch.tensor(0))


def layers(targets):
    """Clients whose model is head * trunk, one number each; the flat vector is (trunk, head)."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    return Simulator(line(targets).train, Regression(module))


def test_a_round_by_hand():
    # Half the way from the centre of its cluster to its target: 1 -> 1, 1 -> 2, -1 -> -1.5. All are
    # still nearest to the centre they came from; the means are 1.5 and -1.5.
    fesem = FeSEM(lr=0.25, steps=1)
    after, info = fesem.round(state([1.0, -1.0], [0, 0, 1]), simulator([1, 3, -2]).at("round", 0))
    assert info.cluster.tolist() == [0, 0, 1]
    assert after.models.flatten().tolist() == [1.5, -1.5]


def test_the_e_step_moves_a_client_and_the_m_step_counts_it_where_it_is():
    # The client at -3 is in cluster 0 and trains from 1 to -1, which is the other centre.
    fesem = FeSEM(lr=0.25, steps=1)
    after, info = fesem.round(state([1.0, -1.0], [0, 0, 1]), simulator([1, -3, -2]).at("round", 0))
    assert info.cluster.tolist() == [0, 1, 1]
    assert after.cluster.tolist() == [0, 1, 1]
    assert after.models.flatten().tolist() == [1.0, -1.25]


def test_the_mean_by_size_by_hand():
    clients = simulator([1, 3, -2], sizes=[3, 1, 1]).at("round", 0)
    fesem = FeSEM(lr=0.25, steps=1, weighting="size")
    after, _ = fesem.round(state([1.0, -1.0], [0, 0, 1]), clients)
    assert after.models.flatten().tolist() == [1.25, -1.5]


def test_the_pull_towards_the_centre_by_hand():
    # From 1 towards 3, gradient 2 (w - 3) + 1 (w - 1): -4 at 1, then -2 + 1 at 2.
    fesem = FeSEM(k=1, lr=0.25, steps=2, pull=1.0)
    after, _ = fesem.round(state([1.0], [0]), simulator([3]).at("round", 0))
    assert after.models.item() == pytest.approx(2.25)


def test_the_pull_is_over_the_part_that_distances_are_over():
    # head 1, trunk 1, y 2: both gradients are -2, so 1.2 each. At 1.44 they are 2 (-0.56) 1.2 =
    # -1.344, and that of the head has the pull 1 (1.2 - 1) besides.
    fesem = FeSEM(k=1, lr=0.1, steps=2, pull=1.0, part="head")
    after, _ = fesem.round(state([[1.0, 1.0]], [0]), layers([2]).at("round", 0))
    assert after.models[0].tolist() == pytest.approx([1.3344, 1.3144])


def test_distances_are_over_all_parameters_or_over_a_part():
    # The client comes to (1.2, 1.2). By all parameters (1, 1) is nearer than (9, 1.2), by the head
    # alone it is the other way round.
    before = state([[1.0, 1.0], [9.0, 1.2]], [0])
    for part, expected in (("all", 0), ("head", 1), ("0", 0)):
        fesem = FeSEM(lr=0.1, steps=1, part=part)
        _, info = fesem.round(before, layers([2]).at("round", 0))
        assert info.cluster.tolist() == [expected], part


def test_an_empty_cluster_keeps_its_centre():
    before = state([1.0, -1.0, 50.0], [0, 1])
    after, _ = FeSEM(k=3, lr=0.25, steps=1).round(before, simulator([1, -2]).at("round", 0))
    assert after.models.flatten().tolist() == [1.0, -1.5, 50.0]


def test_means_of_what_is_already_right_change_nothing():
    """In a public code the sum of a cluster is divided by all participants, and models shrink."""
    before = state([1.0, -1.0], [0, 0, 0, 1])
    after, _ = FeSEM(lr=0.25, steps=3).round(before, simulator([1, 1, 1, -1]).at("round", 0))
    assert after.models.flatten().tolist() == [1.0, -1.0]


def test_absent_clients_keep_their_cluster_and_do_not_count():
    fesem = FeSEM(lr=0.25, steps=1)
    clients = simulator([1, 3, -2]).at("round", 0, ids=torch.tensor([1]))
    after, info = fesem.round(state([1.0, -1.0], [0, 0, 1]), clients)
    assert info.ids.tolist() == [1]
    assert after.models.flatten().tolist() == [2.0, -1.0]
    assert after.cluster.tolist() == [0, 0, 1]


def test_a_client_without_a_cluster_takes_the_centre_with_the_lowest_loss():
    fesem = FeSEM(lr=0.25, steps=1)
    before = state([1.0, -1.0], [0, -1])
    sent = ByteMeter()
    after, info = fesem.round(before, simulator([1, -2]).at("round", 0).through(listener=sent))
    assert info.cluster.tolist() == [0, 1]
    assert after.models.flatten().tolist() == [1.0, -1.5]
    # Only the newcomer is sent both centres; a number takes 4 bytes.
    assert sent.table()["FeSEM.choose"]["down"] == {"models": 2 * 4}
    assert sent.table()["FeSEM.train"]["down"] == {"model": 2 * 4}


def test_a_newcomer_whose_model_is_lost_stays_unknown():
    before = state([1.0, -1.0], [-1, -1])
    clients = simulator([1, -2]).at("round", 0).through(LoseReplies(1.0))
    after, info = FeSEM().round(before, clients)
    assert len(info.ids) == 0
    assert after.cluster.tolist() == [-1, -1]


def test_centres_begin_at_the_tightest_clustering_of_one_local_training():
    # From 0 the clients come to 1, 2, -3 and -4.
    fesem = FeSEM(lr=0.25, steps=1)
    before = fesem.init(start_of(simulator([2, 4, -6, -8], draws=[0])))
    assert before.models.flatten().sort().values.tolist() == [-3.5, 1.5]
    assert before.models[before.cluster].flatten().tolist() == [1.5, 1.5, -3.5, -3.5]


def test_the_common_model_may_be_trained_before():
    # FedAvg takes 0 to 1.5, the mean of 1 and 2; from there the clients come to 1.75 and 2.75.
    clients = simulator([2, 4], draws=[0])
    before = FeSEM(lr=0.25, steps=1, warm_rounds=1).init(start_of(clients))
    assert before.models.flatten().sort().values.tolist() == [1.75, 2.75]
    # With a step of 1/2 FedAvg goes all the way, to 3; then half the way to 2 and to 4.
    clients = simulator([2, 4], draws=[0])
    before = FeSEM(lr=0.25, steps=1, warm_rounds=1, warm_lr=0.5).init(start_of(clients))
    assert before.models.flatten().sort().values.tolist() == [2.5, 3.5]


def test_with_a_part_only_the_part_differs_at_the_start():
    federation, task = coterie.load("rotated-digits", clients=8)
    before = FeSEM(k=4, part="head").init(start_of(Simulator(federation.train, task)))
    head = task.layout.part("head")
    assert torch.equal(before.models[0, ~head], before.models[1, ~head])
    assert len(before.models[:, head].unique(dim=0)) == 4


def test_no_two_centres_begin_alike():
    """In a public code all k models start identical, and one takes everybody for good."""
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(FeSEM(k=4), federation, task, rounds=5)
    before = FeSEM(k=4).init(start_of(Simulator(federation.train, task)))
    assert torch.pdist(before.models).min() > 0.01
    assert run.metrics["ari"] == 1.0


def test_clients_that_k_means_did_not_see_join_the_nearest_centre():
    federation, task = coterie.load("rotated-digits", clients=40)
    before = FeSEM(k=4, sample=20).init(start_of(Simulator(federation.train, task)))
    found = coterie.evaluation.measures.clustering_scores(before.cluster, federation.cluster)
    assert found["ari"] == 1.0


@pytest.mark.parametrize("every", [1, 1000])
def test_clients_are_clustered_again_in_a_run_shorter_than_the_interval(every):
    """In a public code the interval was longer than the run: the clusters stayed as they began."""
    # From 0 all come half the way. The best clusters of 0.5 (four times), 2.6 and 5 (three times)
    # have centres 0.92 and 5; the client at 5.2 trains from 0.92 to 3.06, which is nearer to 5.
    task = simulator([1], draws=[0]).task
    fesem = FeSEM(lr=0.25, steps=1, recluster=every)
    clients = simulator([1, 1, 1, 1, 5.2, 10, 10, 10], draws=[0])
    begun = fesem.init(start_of(clients)).cluster
    assert begun[4] == begun[0] != begun[5]
    run = coterie.simulate(fesem, line([1, 1, 1, 1, 5.2, 10, 10, 10]), task, rounds=2)
    assert run.clusters[4] == run.clusters[5] != run.clusters[0]


def test_the_interval_counts_from_the_first_round():
    # The client at -3 trains from 1 to -1, but changes its cluster in rounds 0, 2, ... only.
    fesem = FeSEM(lr=0.25, steps=1, recluster=2)
    before = state([1.0, -1.0], [0, 0, 1])
    clients = simulator([1, -3, -2])
    for t, cluster, models in ((0, 1, [1.0, -1.25]), (1, 0, [0.0, -1.5]), (2, 1, [1.0, -1.25])):
        after, info = fesem.round(before, clients.at("round", t, round=t))
        assert info.cluster.tolist() == [0, cluster, 1]
        assert after.models.flatten().tolist() == models


def test_with_one_cluster_it_is_fedavg_after_one_round_more():
    federation, task = coterie.load("rotated-digits", clients=8)
    settings = {"steps": 3, "lr": 0.2}
    fesem = coterie.simulate(FeSEM(k=1, **settings), federation, task, rounds=3)
    fedavg = coterie.simulate(FedAvg(**settings), federation, task, rounds=4)
    torch.testing.assert_close(fesem.models, fedavg.models)


def test_few_clients_in_a_round_recover_the_rotations_too():
    federation, task = coterie.load("rotated-digits", clients=40)
    run = coterie.simulate(FeSEM(k=4), federation, task, rounds=20, fraction=0.2, evaluate=20)
    assert run.metrics["ari"] == 1.0


def test_unseen_clients_choose_by_loss():
    run = coterie.simulate(
        FeSEM(k=2, lr=0.25),
        line([1, 1, -1, -1]),
        Regression(lambda: nn.Linear(1, 1, bias=False)),
        rounds=3,
    )
    cluster = run.serve(line([-1.2, 0.7]))
    assert cluster.tolist() == [run.clusters[2].item(), run.clusters[0].item()]


def test_a_client_may_be_served_its_own_model():
    # From its centre 1.5 the client at 2 goes half the way; after a round the step is halved.
    fesem = FeSEM(lr=0.25, steps=1, serves="own", decay=0.5)
    clients = simulator([2, -6])
    for rounds, expected in ((0, [1.75, -4.5]), (1, [1.625, -3.75])):
        now = state([1.5, -3.0], [0, 1])._replace(rounds=torch.tensor(rounds))
        serving = fesem.serve(now, clients.at("serve"))
        assert serving.cluster.tolist() == [0, 1]
        cohort = clients.cohort(torch.arange(2), 0, (0,))
        models = serving.adapt(cohort, model=serving.models[serving.cluster])
        assert models.flatten().tolist() == pytest.approx(expected)


def test_served_its_own_model_a_client_still_counts_in_its_cluster():
    federation, task = coterie.load("rotated-digits", clients=16)
    run = coterie.simulate(FeSEM(k=4, serves="own"), federation, task, rounds=3)
    assert run.metrics["ari"] == 1.0
    assert run.metrics["clusters"] == 4
    assert run.models.shape == (16, task.layout.size)


def test_k_is_chosen_on_held_out_samples():
    federation, task = coterie.load("rotated-digits", clients=40)
    run = coterie.simulate(FeSEM(k=0, k_most=6), federation, task, rounds=2)
    assert run.models.shape == (4, task.layout.size)
    assert run.metrics["ari"] == 1.0


def test_the_smallest_k_that_is_not_clearly_worse_by_hand():
    nan = torch.nan
    # K = 3 is best on average, 1.0; K = 2 is worse by 0.1, 0.1, -0.1, 0.1: mean 0.05, standard
    # error 0.1 / 2. K = 1 is worse by 1.
    losses = [[2.0, 2.0, 2.0, 2.0], [1.1, 1.1, 0.9, 1.1], [1.0, 1.0, 1.0, 1.0]]
    assert smallest_good_k(torch.tensor(losses).double()) == 2
    losses[1] = [1.1, 1.1, 1.0, 1.1]  # mean 0.075, standard error 0.025
    assert smallest_good_k(torch.tensor(losses).double()) == 3
    # A client that did not answer for one K counts for none.
    assert smallest_good_k(torch.tensor([[2.0, 2.0, 0.0], [1.0, 1.0, nan]])) == 2
    assert smallest_good_k(torch.tensor([[2.0, 2.0], [torch.inf, 1.0]])) == 1
    assert smallest_good_k(torch.tensor([[nan], [1.0]])) == 1


@pytest.mark.parametrize(
    "check",
    # Samples are held out, and a sample of clients drawn, by client id. Half of what the smallest
    # clients of that check have, one sample, is too little for batch normalisation.
    [c for c in CHECKS if c not in (order_of_clients_does_not_matter, any_network_will_do)],
)
def test_conformance_with_k_to_be_chosen(check):
    check(FeSEM(k=0, k_most=3, k_rounds=1, sample=6))


def test_nobody_at_the_start_is_an_error_of_one_sentence():
    class Silent:
        def sample(self, round, at_least):
            return simulator([1, 2, 3]).at("start", round).through(LoseReplies(1.0))

    start = start_of(simulator([1, 2, 3]))
    silent = type(start)(Silent(), start.task, start.clients, seed=0)
    with pytest.raises(CoterieError, match="fewer than k = 2 clients sent a finite model"):
        FeSEM(k=2).init(silent)


def test_settings_out_of_range_are_refused():
    for wrong, sentence in (
        ({"recluster": 0}, "`recluster` of FeSEM must be at least 1, got 0"),
        ({"kept": 1.5}, "`kept` of FeSEM must be above 0 and at most 1, got 1.5"),
        ({"weighting": "big"}, "`weighting` of FeSEM must be one of equal, size, got big"),
    ):
        with pytest.raises(SettingError, match=sentence):
            FeSEM(**wrong)
    with pytest.raises(SettingError, match="`k` of FeSEM must be at most the number of clients, 2"):
        FeSEM(k=3).init(start_of(simulator([1, 2])))
    with pytest.raises(SettingError, match="no part named haed; did you mean `head`"):
        FeSEM(part="haed").init(start_of(simulator([1, 2])))
