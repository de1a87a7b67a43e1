import pytest
import torch

import coterie
from coterie import Centre, Federation, KFed
from coterie.algorithms import k_fed
from coterie.algorithms.k_fed import find_centres, local_centres
from coterie.core.errors import SettingError
from coterie.engine.simulator import Simulator
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings
from tests.algorithms.lines import start_of


def points(*values):
    return torch.tensor(values).double()[:, None]


def places(*clients, test=None):
    """Clients whose samples are points on a line; all labels are 0."""
    pairs = [(points(*values), torch.zeros(len(values)).long()) for values in clients]
    if test is not None:
        test = [(points(*values), torch.zeros(len(values)).long()) for values in test]
    return Federation.from_clients(pairs, test=test)


def simulator(*clients):
    return Simulator(places(*clients).train, Centre(1, dtype=torch.float64))


def ran(algorithm, federation, **settings):
    centre = Centre(1, dtype=torch.float64)
    return coterie.simulate(algorithm, federation, centre, **{"rounds": 1, **settings})


def test_a_device_by_hand():
    # Two clear groups with means 1 and 10; that with more samples comes first.
    clients = simulator([9, 11, 0, 1, 2])
    state = KFed(k=3, k_local=2).init(start_of(clients))
    _, up = clients.at("round").run(KFed(k=3, k_local=2).cluster, seed=state.seed)
    torch.testing.assert_close(up.centres, torch.tensor([[[1.0], [10.0]]]).double())
    assert up.number.tolist() == [2]


def start_of_lloyd(monkeypatch, samples, k):
    """Where a device begins with Lloyd's method on its samples."""
    seen = []
    monkeypatch.setattr(
        k_fed, "lloyd", lambda x, centres: seen.append(centres) or k_fed_lloyd(x, centres)
    )
    local_centres(samples, k, seed=0, tries=10)
    return seen[0].flatten().sort().values.tolist()


k_fed_lloyd = k_fed.lloyd


def test_lloyd_begins_with_the_means_of_clear_samples(monkeypatch):
    # k-means gives {0, 1, 4} and {9, 10} with centres 5/3 and 19/2. For the sample at 4 these are
    # 7/3 and 11/2 away, and 3 * 7/3 > 11/2: it does not count.
    assert start_of_lloyd(monkeypatch, points(0, 1, 4, 9, 10), 2) == pytest.approx([0.5, 9.5])


def test_a_group_without_a_clear_sample_keeps_its_seed(monkeypatch):
    # The group {3.6, 6.4} has its centre at 5. Both are 1.4 from it, which is more than a third of
    # the 3.6 to the next centre.
    found = start_of_lloyd(monkeypatch, points(0, 0, 3.6, 6.4, 10, 10), 3)
    assert found == pytest.approx([0.0, 5.0, 10.0])


def test_samples_are_projected_on_their_leading_singular_vectors(monkeypatch):
    # The first axis has by far the most length, so that k' = 1 sees only this one; its centre is
    # the mean of all samples all the same.
    seen = []
    monkeypatch.setattr(
        k_fed, "kmeans", lambda x, *a, **b: seen.append(x) or k_fed_kmeans(x, *a, **b)
    )
    samples = torch.tensor([[10.0, 0.0], [12.0, 1.0], [14.0, -1.0]]).double()
    centre = local_centres(samples, 1, seed=0, tries=1)
    assert seen[0].shape == (3, 1)
    assert seen[0].abs().flatten().tolist() == pytest.approx([10, 12, 14], rel=0.01)
    torch.testing.assert_close(centre, torch.tensor([[12.0, 0.0]]).double())


k_fed_kmeans = k_fed.kmeans


@pytest.mark.parametrize("server", ["farthest", "device", "k-means"])
@pytest.mark.parametrize("seed", range(4))
def test_the_server_by_hand(server, seed):
    # No client has more than k' = 2 samples, so these are its centres. Wherever it begins, three
    # centres that are far apart are one of {0, 1}, one of {10, 11} and 30.
    federation = places([0, 10], [11, 1], [30])
    run = ran(KFed(k=3, k_local=2, server=server), federation, seed=seed)
    a, b, c, d, e = run.labels.tolist()
    assert a == d
    assert b == c
    assert len({a, b, e}) == 3
    means = run.models.flatten()
    assert means[[a, b, e]].tolist() == [0.5, 10.5, 30.0]
    # Four of five samples are 1/2 from the centre of their cluster.
    assert run.metrics["train_loss"] == pytest.approx(4 / 5 * 0.25)


def test_one_lloyd_round_and_no_more():
    # A random direction begins at an end of the line, 0 or 7, and the other end is the farthest.
    # What lies beyond 3.5 goes to 7. The means are 2.55 and 5.3, of which 3.6 is nearer to the
    # first, but there is no second round.
    run = ran(KFed(k=2, k_local=1), places([0], [3.4], [3.4], [3.4], [3.6], [7]))
    low, high = run.models.flatten().argsort().tolist()
    assert run.labels.tolist() == [low] * 4 + [high] * 2
    assert run.models.flatten()[[low, high]].tolist() == pytest.approx([2.55, 5.3])


def test_a_device_that_cuts_a_cluster_does_not_mislead_the_server():
    # Each client has one cluster and cuts it in two. If the server begins with both pieces of one
    # client, as the paper does, no place is left for the other cluster.
    federation = places([0, 0.1], [10, 10.2])
    assert ran(KFed(k=2), federation).labels.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    misled = ran(KFed(k=2, server="device"), federation).labels
    assert misled[0] != misled[1] or misled[2] != misled[3]


def test_samples_have_the_cluster_of_their_local_centre():
    # The client's centres are 3 and 10, of which 3 is in the cluster of 0. A sample at 6 is
    # nearer to 3 than to 10, so it is there too, though it is nearer to 10 than to 0.
    run = ran(KFed(k=2), places([3, 10], [3, 10], test=[[6], [9]]))
    cohort = run.evaluator.scorer.simulators["test"].cohort(torch.arange(2), 0, (0,))
    chosen = points(0, 10)
    label = run.algorithm.label(cohort, models=chosen, chosen=chosen, seed=run.state.seed)
    assert label.tolist() == [[0], [1]]


def test_clients_that_come_later_are_added():
    clients = simulator([0, 1], [10, 11])
    algorithm = KFed(k=2, k_local=1)
    state = algorithm.init(start_of(clients))
    state, info = algorithm.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    assert state.number.tolist() == [1, 0]
    assert state.mu.flatten().tolist() == [0.5, 0.5]
    state, info = algorithm.round(state, clients.at("round", 1, ids=torch.tensor([1])))
    assert state.number.tolist() == [1, 1]
    assert info.ids.tolist() == [1]
    assert sorted(state.mu.flatten().tolist()) == [0.5, 10.5]


def test_a_client_that_never_came_clusters_its_samples_itself():
    clients = simulator([0, 1, 10, 11], [2, 12, 13, 3, 2])
    algorithm = KFed(k=2)
    state = algorithm.init(start_of(clients))
    state, _ = algorithm.round(state, clients.at("round", 0, ids=torch.tensor([0])))
    serving = algorithm.serve(state, clients.at("serve"))
    low, high = state.mu.flatten().argsort().tolist()
    label = serving.label(clients.cohort(torch.arange(2), 0, (0,)), models=serving.models)
    assert label[0, :4].tolist() == [low, low, high, high]
    assert label[1].tolist() == [low, high, high, low, low]
    assert serving.cluster[1] == low  # three of five samples


def test_one_round_is_all_that_crosses():
    run = ran(KFed(k=3, k_local=2), places([0, 10], [11, 1], [30]), rounds=1)
    # Down the seed, 8 bytes; up two points of one double each and their number, to each client.
    assert run.bytes.total("down") == 3 * 8
    assert run.bytes.total("up") == 3 * (2 * 8 + 8)


def test_equal_samples_are_one_centre():
    clients = simulator([4, 4, 4, 4], [4])
    state = KFed(k=3).init(start_of(clients))
    _, up = clients.at("round").run(KFed(k=3).cluster, seed=state.seed)
    assert up.number.tolist() == [1, 1]
    assert ran(KFed(k=3), places([4, 4, 4, 4], [4])).metrics["clusters"] == 1


def test_another_task_is_refused():
    federation, task = coterie.load("rotated-digits", clients=4)
    run = coterie.Run(KFed(), federation, task, RunSettings())
    with pytest.raises(SettingError, match="task must be Centre, got Classification"):
        run.complete()


@pytest.mark.parametrize("server", ["farthest", "k-means"])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_gaussian_clusters_are_found_whatever_the_heterogeneity(p, server):
    words = ["k-fed", "gaussian-clusters", "samples=200", f"heterogeneity={p}", f"server={server}"]
    plan = make_plan(words)
    assert plan.settings.rounds == 1
    run = plan.run(plan.config()).complete()
    assert run.metrics["purity"] == run.metrics["accuracy"] == run.metrics["ari"] == 1.0
    assert run.metrics["clusters"] == 4


def test_what_the_user_says_is_stronger_than_what_the_algorithm_suggests():
    plan = make_plan(["k-fed", "gaussian-clusters", "rounds=3", "fraction=0.5"])
    assert (plan.settings.rounds, plan.settings.fraction) == (3, 0.5)


def test_a_client_without_points_has_no_centre():
    found = find_centres([points(), points(1, 2, 9), points(4)], 2, 0, 3)
    assert found.number.tolist() == [0, 2, 1]
    assert found.centres.flatten(1).tolist() == [[0, 0], [1.5, 9], [4, 0]]


def test_points_that_are_not_finite_have_no_part_in_the_centres():
    wrong = torch.tensor([[torch.nan], [torch.inf]])
    right = points(1, 2, 9, 10)
    found = find_centres([torch.cat([right, wrong]), wrong, right], 2, 0, 3)
    assert found.number.tolist() == [2, 0, 2]
    assert torch.equal(found.centres[0], found.centres[2])
    assert found.centres[1].eq(0).all()
