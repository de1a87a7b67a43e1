import pytest
import torch
from sklearn.datasets import load_digits

import coterie
from coterie.core.errors import DataError
from coterie.data import sources

MNIST_HERE = any((folder / "mnist").is_dir() for folder in sources.folders())
needs_mnist = pytest.mark.skipif(
    not MNIST_HERE, reason="train-images-idx3-ubyte is in no data folder: set COTERIE_DATA"
)


def test_rotated_digits_are_80_clients_of_71_training_samples():
    federation, task = coterie.load("rotated-digits")
    assert len(federation) == 80
    assert set(federation.train.sizes.tolist()) == {71}
    assert set(federation.test.sizes.tolist()) == {18}
    assert torch.bincount(federation.cluster).tolist() == [20, 20, 20, 20]
    assert task.layout.size == 64 * 100 + 100 + 100 * 10 + 10


def test_every_rotation_holds_each_image_at_most_once_and_rotated():
    federation, _ = coterie.load("rotated-digits", clients=4)
    original = {tuple(row) for row in (load_digits().data / 16).tolist()}
    for r in range(4):
        rows = torch.cat([federation.train.client(r)[0], federation.test.client(r)[0]])
        back = torch.rot90(rows.view(-1, 8, 8), -r, (1, 2)).flatten(1)
        assert len(rows) == 1797
        assert {tuple(row) for row in back.tolist()} == original


def test_the_seed_splits_the_images():
    one, again, other = (coterie.load("rotated-digits", seed=s)[0] for s in (1, 1, 2))
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)


def test_two_rotations_are_upright_and_upside_down(small_sources):
    federation, _ = coterie.load("rotated-cifar", clients=2)
    images, _ = sources.load_cifar10("train")
    rows = {row.numpy().tobytes() for row in images}
    upright, turned = federation.train.client(0)[0], federation.train.client(1)[0]
    assert all(row.numpy().tobytes() in rows for row in upright)
    assert all(row.flip(0, 1).contiguous().numpy().tobytes() in rows for row in turned)
    assert federation.test_cluster.tolist() == [0] * (len(federation.test) // 2) + [1] * (
        len(federation.test) // 2
    )


@needs_mnist
@pytest.mark.parametrize(("m", "n", "m_test"), [(4800, 50, 800), (1200, 200, 200)])
def test_rotated_mnist_has_the_machines_of_the_paper(m, n, m_test):
    federation, task = coterie.load("rotated-mnist", clients=m, samples=n)
    assert len(federation) == m
    assert federation.train.x.shape == (240_000, 28, 28)
    assert set(federation.train.sizes.tolist()) == {n}
    assert len(federation.test) == m_test
    assert federation.test.x.shape == (40_000, 28, 28)
    assert federation.unseen
    assert task.layout.size == 159_010
    pixels = task.inputs(federation.train.x[:100])
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)


def test_a_missing_file_names_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="`coterie data get mnist` gets it"):
        coterie.load("rotated-mnist")
