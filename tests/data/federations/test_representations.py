import pytest
import torch

import coterie
from coterie.data import sources
from coterie.data.sources import rotnet


@pytest.fixture(autouse=True)
def small(small_sources):
    """Random images and a network that is hardly trained."""


def load(**settings):
    return coterie.load("mnist-representations", **{"samples": 12, "features": 5} | settings)[0]


def test_clients_hold_components_of_representations():
    federation = load(heterogeneity=0.5)
    assert len(federation) == 4
    assert federation.train.x.shape == (48, 5)
    assert federation.class_count == 4
    assert federation.scale == 1
    variance = federation.train.x.var(0, correction=0)
    assert variance.mean().item() == pytest.approx(1, rel=1e-4)
    assert (variance.diff() < 0).all()
    white = load(heterogeneity=0.5, whiten=True).train.x
    assert torch.allclose(white.T @ white / 48, torch.eye(5), atol=1e-3)


def test_components_do_not_depend_on_who_holds_what():
    """Four clients with 12 samples and one with 48 draw alike where p = 0."""
    four, one = load(), load(clients=1, samples=48)
    assert torch.equal(four.train.y, one.train.y)
    assert torch.allclose(four.train.x, one.train.x, atol=1e-4)


def test_clusters_are_rotations_of_a_digit_or_digits(monkeypatch):
    seen = []
    represent = rotnet.RotNet.represent
    monkeypatch.setattr(
        rotnet.RotNet, "represent", lambda self, x: [seen.append(x), represent(self, x)][1]
    )
    images, digits = sources.load_mnist("train")
    for settings, turned in (({"digit": 3}, True), ({"clusters": "digits"}, False)):
        federation = load(**settings)
        for x, y in zip(seen.pop(), federation.train.y.tolist(), strict=True):
            upright = torch.rot90(x, -y) if turned else x
            found = digits[(images == upright).flatten(1).all(1)]
            assert found.tolist() == [3 if turned else y]
    assert federation.class_count == 10


def test_another_network_represents_the_same_samples_otherwise():
    one, other = load(network_seed=0), load(network_seed=1)
    assert torch.equal(one.train.y, other.train.y)
    assert not torch.allclose(one.train.x, other.train.x, atol=0.1)


def test_from_the_cache_nothing_is_trained(monkeypatch, capsys):
    first = load()
    assert "training the network of seed 0" in capsys.readouterr().err
    monkeypatch.setattr(rotnet, "train_rotnet", None)
    assert torch.equal(load().train.x, first.train.x)
    assert capsys.readouterr() == ("", "")


def test_samples_are_clustered():
    run = coterie.simulate(coterie.KFed(k=4), load(), coterie.Centre(5), rounds=1)
    assert 0.25 <= run.metrics["purity"] <= 1
