import pytest
import torch

import coterie
from coterie.core.errors import SettingError
from coterie.data import sources


@pytest.fixture
def digits(monkeypatch):
    """Twenty images of each digit, whose pixels all have the digit as their value."""
    labels = torch.arange(10).repeat(20)
    images = labels.to(torch.uint8)[:, None, None].expand(200, 28, 28)
    monkeypatch.setattr(sources, "load_mnist", lambda part: (images, labels))


def test_one_digit_is_turned_or_all_of_them(digits):
    one, _ = coterie.load("mnist-digit-rotations", samples=10, digit=3)
    assert one.train.x.unique().tolist() == [3]
    mixed, _ = coterie.load("mnist-digit-rotations", samples=10, digit=-1)
    assert len(mixed.train.x.unique()) > 1
    with pytest.raises(SettingError, match="must be at most 9, got 10"):
        coterie.load("mnist-digit-rotations", digit=10)


def test_labels_of_these_federations_are_the_true_clusters(digits):
    for name in ("gaussian-clusters", "subspace-clusters", "mnist-digits", "mnist-digit-rotations"):
        assert coterie.load(name, samples=10)[0].sample_clusters
    assert not coterie.load("rotated-digits", clients=8)[0].sample_clusters
