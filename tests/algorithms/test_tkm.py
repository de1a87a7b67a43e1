import pytest
import torch

import coterie
from coterie import TKM, FeSEM
from coterie.algorithms.tkm import State
from coterie.core.errors import SettingError
from tests.algorithms.boost import boosted_run
from tests.algorithms.lines import simulator, start_of


def state(models, cluster):
    return State(torch.tensor(models)[:, None], torch.tensor(cluster))


def test_a_round_by_hand():
    # From 1 half the way to 0, 1, 2 and 7: 0.5, 1, 1.5 and 4. A quarter of four at each end leaves
    # 1 and 1.5. The client at -2 is alone, and none of one is left out: -1.5.
    tkm = TKM(lr=0.25, steps=1, trim=0.25)
    clients = simulator([0, 1, 2, 7, -2]).at("round", 0)
    after, info = tkm.round(state([1.0, -1.0], [0, 0, 0, 0, 1]), clients)
    assert info.cluster.tolist() == [0, 0, 0, 0, 1]
    assert after.models.flatten().tolist() == [1.25, -1.5]


def test_clients_are_clustered_before_means_are_trimmed():
    # The client at -3 trains from 1 to -1 and counts in the other cluster: -1.25.
    tkm = TKM(lr=0.25, steps=1)
    clients = simulator([1, -3, -2]).at("round", 0)
    after, info = tkm.round(state([1.0, -1.0], [0, 0, 1]), clients)
    assert info.cluster.tolist() == after.cluster.tolist() == [0, 1, 1]
    assert after.models.flatten().tolist() == [1.0, -1.25]


def test_absent_clients_and_empty_clusters_stay():
    clients = simulator([1, 3, -2]).at("round", 0, ids=torch.tensor([1]))
    after, _ = TKM(lr=0.25, steps=1).round(state([1.0, -1.0], [0, 0, 1]), clients)
    assert after.models.flatten().tolist() == [2.0, -1.0]
    assert after.cluster.tolist() == [0, 0, 1]


def test_the_start_is_trimmed_k_means():
    # From 0 half the way: 1, 1.5, 2, 9 | -10, -10. Without a quarter at each end: 1.75; none of two
    # is left out.
    clients = simulator([2, 3, 4, 18, -20, -20], draws=[0])
    before = TKM(lr=0.25, steps=1, trim=0.25).init(start_of(clients))
    assert before.models.flatten().sort().values.tolist() == [-10.0, 1.75]


def test_without_trimming_it_is_fesem():
    federation, task = coterie.load("rotated-digits", clients=16)
    one, other = (
        coterie.simulate(algorithm, federation, task, rounds=3)
        for algorithm in (TKM(k=4, trim=0.0, iterations=100), FeSEM(k=4))
    )
    assert torch.equal(one.clusters, other.clusters)
    torch.testing.assert_close(one.models, other.models)


def test_a_boosted_update_takes_a_cluster_of_its_own():
    """Trimming is inside clusters: it cannot help where an outlier is one."""
    federation, task = coterie.load("rotated-digits", clients=16)
    assert coterie.simulate(TKM(k=4), federation, task, rounds=3).metrics["ari"] == 1.0
    run = boosted_run(TKM(k=4), federation, task, [1, 6], 16.0, rounds=3)
    honest = torch.tensor([i for i in range(16) if i not in (1, 6)])
    assert len(run.clusters[honest].unique()) < 4


def test_half_or_more_cannot_be_left_out_at_each_end():
    with pytest.raises(SettingError, match=r"`trim` of TKM must be below 0\.5"):
        TKM(trim=0.5)
