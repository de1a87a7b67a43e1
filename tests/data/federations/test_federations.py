import pytest
import torch
from sklearn.datasets import load_digits

import coterie
from coterie.core.errors import DataError, SettingError
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


def test_every_rotation_holds_each_image_at_most_once_and_turned():
    federation, _ = coterie.load("rotated-digits", clients=4)
    original = {tuple(row) for row in (load_digits().data / 16).tolist()}
    for r in range(4):
        rows = torch.cat([federation.train.client(r)[0], federation.test.client(r)[0]])
        back = torch.rot90(rows.view(-1, 8, 8), -r, (1, 2)).flatten(1)
        assert len(rows) == 1797
        assert {tuple(row) for row in back.tolist()} == original


def test_the_seed_deals_the_cards():
    one, again, other = (coterie.load("rotated-digits", seed=s)[0] for s in (1, 1, 2))
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("rotated-digits", {"clients": 8000}, "1797 samples in each rotation, too few for 2000"),
        ("rotated-digits", {"clients": 80, "samples": 90}, "too few for 20 clients of 90 samples"),
        (
            "rotated-digits",
            {"clients": 3},
            "`clients` of RotatedDigits must be at least `rotations`",
        ),
        ("rotated-digits", {"rotations": 5}, "must be at most 4, got 5"),
        ("rotated-digits", {"train_share": 1.0}, "must lie between 0 and 1, got 1"),
        ("linear-mixture", {"clients": 1}, "must be at least `groups`, 2, got 1"),
        ("linear-mixture", {"scale": "raww"}, "one of norm, raw, got raww; did you mean `raw`"),
        (
            "rotated-digit",
            {},
            "no federation is named rotated-digit; did you mean `rotated-digits`",
        ),
        ("rotated-digits", {"client": 8}, "no setting named client; did you mean `clients`"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        coterie.load(name, **settings)


def test_the_linear_mixture_is_that_of_the_paper():
    federation, task = coterie.load(
        "linear-mixture", clients=6, samples=4000, features=5, groups=3, separation=0.5, noise=0.2
    )
    assert federation.cluster.tolist() == [0, 0, 1, 1, 2, 2]
    assert federation.truth.norm(dim=1).tolist() == pytest.approx([0.5] * 3)
    for i in range(6):
        x, y = federation.train.client(i)
        residual = y - x @ federation.truth[federation.cluster[i]]
        assert residual.std().item() == pytest.approx(0.2, rel=0.1)
        assert torch.cov(x.T).diag().tolist() == pytest.approx([1.0] * 5, rel=0.15)
    draw = task.draw(torch.Generator().manual_seed(0))
    assert set(draw.tolist()) <= {0.0, 1.0}


def test_the_authors_scale_is_not_normalised():
    federation, _ = coterie.load("linear-mixture", features=50, separation=0.5, scale="raw")
    assert set(federation.truth.flatten().tolist()) == {0.0, 0.5}


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
