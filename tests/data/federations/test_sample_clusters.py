import pytest
import torch

import coterie


def test_labels_of_these_federations_are_the_true_clusters(small_sources):
    images = ("mnist-digits", "mnist-digit-rotations", "mnist-representations")
    for name in ("gaussian-clusters", "subspace-clusters", *images):
        assert coterie.load(name, samples=10)[0].sample_clusters
    assert not coterie.load("rotated-digits", clients=8)[0].sample_clusters


@pytest.mark.parametrize(
    "name", ["gaussian-clusters", "subspace-clusters", "mnist-digits", "mnist-representations"]
)
def test_heterogeneity_is_the_share_from_the_home_cluster(name, small_sources):
    settings = {"samples": 40, "clients": 4}
    whole, _ = coterie.load(name, heterogeneity=1.0, **settings)
    assert [len(set(whole.train.client(i)[1].tolist())) for i in range(4)] == [1] * 4
    assert len({int(whole.train.client(i)[1][0]) for i in range(4)}) == 4
    half, _ = coterie.load(name, heterogeneity=0.5, **settings)
    for i in range(4):
        labels = half.train.client(i)[1]
        assert labels[:20].tolist() == [i] * 20
        assert len(set(labels[20:].tolist())) > 1


def test_subspace_clusters_have_the_rank_they_should():
    federation, _ = coterie.load("subspace-clusters", heterogeneity=1.0)
    for i in range(4):
        x, _ = federation.train.client(i)
        assert torch.linalg.matrix_rank(x, rtol=1e-4).item() == 16


def test_gaussian_clusters_have_unit_deviation_around_centres_on_a_grid():
    federation, _ = coterie.load("gaussian-clusters", heterogeneity=1.0)
    for i in range(4):
        x, _ = federation.train.client(i)
        assert x.std(0).mean().item() == pytest.approx(1.0, rel=0.05)
        assert ((x.mean(0) / 5).round() * 5 - x.mean(0)).abs().max() < 0.3
