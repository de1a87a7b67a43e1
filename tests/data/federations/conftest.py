"""Small stand-ins for the large sources, in the same form."""

from types import SimpleNamespace

import pytest
import torch

from coterie.data import sources
from coterie.data.sources import rotnet


@pytest.fixture
def small_rotnet(monkeypatch, tmp_path):
    """A network that is hardly trained, kept in a folder of the test."""
    monkeypatch.setattr(rotnet, "TRAINING", rotnet.RotNetTraining(steps=2, images=4))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))


@pytest.fixture
def small_sources(monkeypatch, small_rotnet):
    """Random images under the names of the real sources, labels 0 to 9 in turn."""

    def grey(part):
        n = {"train": 600, "test": 100}[part]
        images = torch.randint(256, (n, 28, 28), generator=torch.Generator().manual_seed(n))
        return images.byte(), torch.arange(n) % 10

    def colour(part):
        labels = grey(part)[1]
        n = len(labels)
        wide = torch.randint(256, (n, 32, 32, 3), generator=torch.Generator().manual_seed(n))
        return wide.byte(), labels

    def writers(part):
        writer = torch.arange(600) // 12
        return writer + 100, (writer % 2) * 4

    images, labels = grey("train")
    femnist = SimpleNamespace(
        images=images,
        labels=labels,
        writer=torch.arange(600) // 60,
        split=torch.arange(600) % 10 // 9,
        writers=tuple(f"f{i:04d}_{i}" for i in range(10)),
    )
    faces = torch.randint(256, (40, 84, 84, 3)).byte()
    celeba = SimpleNamespace(
        images=faces,
        smiling=torch.arange(40) % 2,
        person=torch.arange(40) // 8,
        people=("2", "3", "5", "8", "13"),
    )
    monkeypatch.setattr(sources, "load_mnist", grey)
    monkeypatch.setattr(sources, "load_fashion_mnist", grey)
    monkeypatch.setattr(sources, "load_cifar10", colour)
    monkeypatch.setattr(sources, "load_mnist_writers", writers)
    monkeypatch.setattr(sources, "load_femnist", lambda: femnist)
    monkeypatch.setattr(sources, "load_celeba", lambda: celeba)
