import pytest
import torch
from sklearn.metrics import davies_bouldin_score

import coterie
from coterie import IFCA, FedAvg, FeSEM, Local
from coterie.core.errors import SettingError
from coterie.vectors.davies_bouldin import davies_bouldin_of_blocks


def test_the_index_is_scikit_learns_whatever_the_blocks():
    rows = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    cluster = torch.arange(30) % 4 + 3
    expected = davies_bouldin_score(rows.numpy(), cluster.numpy())
    assert davies_bouldin_of_blocks([rows], cluster) == pytest.approx(expected)
    assert davies_bouldin_of_blocks(rows.split(7, 1), cluster) == pytest.approx(expected)


def test_one_cluster_has_no_index():
    assert davies_bouldin_of_blocks([torch.ones(3, 2)], torch.zeros(3, dtype=torch.long)) is None


@pytest.mark.parametrize("method", [IFCA(k=2), FeSEM(k=2)])
def test_client_models_of_true_clusters_lie_apart(method):
    federation, task = coterie.load("rotated-digits", clients=8, rotations=2, hidden=8)
    run = coterie.simulate(method, federation, task, rounds=3, davies_bouldin=True)
    plain = coterie.simulate(method, federation, task, rounds=3)
    assert torch.equal(run.models, plain.models)
    assert 0 < run.metrics["davies_bouldin_sent"] < 3
    assert "davies_bouldin_sent" not in plain.metrics


def test_it_is_left_out_or_refused_where_there_is_none():
    federation, task = coterie.load("rotated-digits", clients=8, rotations=2, hidden=8)
    run = coterie.simulate(FedAvg(), federation, task, rounds=1, davies_bouldin=True)
    assert "davies_bouldin_sent" not in run.metrics
    with pytest.raises(SettingError, match="`davies_bouldin` must be false for Local"):
        coterie.simulate(Local(), federation, task, rounds=1, davies_bouldin=True)
