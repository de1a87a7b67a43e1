import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import SettingError
from coterie.data.federations.leaf_generator import LeafGenerator, device_sizes, label_scores


def rows_of(federation, client):
    """All samples of a client, in no order."""
    parts = [part.client(client) for part in (federation.train, federation.test)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_the_sizes_sum_to_what_the_thesis_counts():
    # Table 4.1: Synthetic has 1,000 devices and 107,553 data points.
    federation = LeafGenerator().build(0)
    sizes = federation.train.sizes + federation.test.sizes
    assert len(federation) == 1000
    assert int(sizes.sum()) == 107_553
    assert sizes[:8].tolist() == [86, 33, 52, 6, 11, 784, 11, 153]
    assert (int(sizes.min()), int(sizes.max())) == (5, 1000)
    assert federation.outputs == 5
    assert set(federation.cluster.tolist()) == {0}


def test_the_numbers_are_those_of_the_program_of_leaf():
    # What `main.py -num-tasks 1000 -num-classes 5 -num-dim 60` gives its first three users.
    sizes = device_sizes(931231, 1000)[:3]
    settings = LeafGenerator(softmax="samples")
    x, y, _ = settings._draw(931231, sizes)
    expected = [
        (0, [-1.6807978879, 2.3469985860, -1.3534158827], [1, 3, 4, 2, 2, 3, 2, 1, 3, 2, 0, 1]),
        (86, [-2.3597183623, -0.7007210969, -1.6421356744], [2, 1, 1, 1, 3, 1, 1, 1, 3, 0, 3, 1]),
        (119, [-1.0412179633, -0.9275768651, -1.6239740295], [2, 3, 2, 1, 2, 3, 2, 1, 4, 3, 0, 3]),
    ]
    for first, features, labels in expected:
        assert x[first, :3].tolist() == pytest.approx(features, rel=1e-6)
        assert y[first : first + 12].tolist() == labels


def test_a_softmax_over_samples_changes_labels_and_nothing_else():
    one, other = (LeafGenerator(clients=30, softmax=way).build(0) for way in ("classes", "samples"))
    assert torch.equal(one.train.x, other.train.x)
    assert 0.05 < (one.train.y == other.train.y).double().mean() < 0.95
    scores = np.random.default_rng(0).normal(size=(9, 4))
    exp = np.exp(scores)
    assert (label_scores(scores, "classes") == (exp / exp.sum(1, keepdims=True)).argmax(1)).all()
    assert (label_scores(scores, "samples") == (exp / exp.sum(0)).argmax(1)).all()


def test_large_scores_have_labels_as_well():
    scores = np.array([[2000.0, 0.0], [1000.0, 0.0]])
    assert label_scores(scores, "samples").tolist() == [0, 1]


def test_a_seed_splits_the_same_devices_otherwise_and_others_are_drawn_on_request():
    one, other = (LeafGenerator(clients=5).build(seed) for seed in (0, 1))
    for i in range(5):
        a, b = (rows_of(each, i)[0] for each in (one, other))
        assert torch.equal(a[a[:, 0].argsort()], b[b[:, 0].argsort()])
    assert not torch.equal(one.train.x, other.train.x)
    drawn = [LeafGenerator(clients=5, leaf_seed=0).build(seed) for seed in (0, 1)]
    assert not torch.equal(drawn[0].train.sizes, drawn[1].train.sizes)
    assert not torch.equal(drawn[0].train.sizes, one.train.sizes)


def test_clusters_label_differently_and_each_is_learnable():
    federation, task = coterie.load(
        "leaf-generator", clients=60, groups=3, features=10, classes=4, leaf_seed=2
    )
    assert len(federation.cluster.unique()) == 3
    method = {"lr": 0.1, "epochs": 3, "batch": 10}
    known = coterie.simulate(coterie.Oracle(**method), federation, task, rounds=30, evaluate=30)
    one = coterie.simulate(coterie.FedAvg(**method), federation, task, rounds=30, evaluate=30)
    assert known.metrics["accuracy"] > 0.75
    assert known.metrics["accuracy"] > one.metrics["accuracy"] + 0.1


def test_wrong_settings_are_refused_in_a_sentence():
    for wrong, sentence in (
        ({"clients": 0}, "must be at least 1, got 0"),
        ({"classes": 1}, "must be at least 2, got 1"),
        ({"softmax": "rows"}, "must be one of classes, samples, got rows"),
        ({"leaf_seed": -1}, "must be at least 0, got -1"),
        ({"train_share": 1.0}, "must lie between 0 and 1, got 1"),
    ):
        with pytest.raises(SettingError, match=sentence):
            LeafGenerator(**wrong)
