"""Federations whose sources are large, on small stand-ins in the same form."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coterie
from coterie import IFCA
from coterie.core.errors import SettingError
from coterie.data import sources
from coterie.data.federation import Samples, split_parts
from coterie.data.federations import synthetic
from coterie.registry import FEDERATIONS


@pytest.fixture
def small_sources(monkeypatch):
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


SMALL = {
    "rotated-mnist": {"clients": 8},
    "rotated-fashion": {"clients": 8},
    "rotated-cifar": {"clients": 4, "samples": 10},
    "label-swap-mnist": {"clients": 8, "alpha": 5.0},
    "label-swap-fashion": {"clients": 8, "alpha": 0.0},
    "femnist": {"hidden": 8},
    "linear-mixture": {"clients": 4, "samples": 5, "features": 3},
    "fpfc-synthetic": {"clients": 8, "most": 60},
    "leaf-synthetic": {"clients": 4, "most": 60},
    "mnist-digits": {"clients": 4, "samples": 10},
    "mnist-digit-rotations": {"samples": 10},
    "mnist": {"clients": 4},
    "fashion-mnist": {"clients": 4, "split": "iid"},
    "cifar10": {"clients": 4, "split": "shards"},
}


@pytest.mark.parametrize("name", [name for name in FEDERATIONS if name != "table"])
def test_every_federation_is_seeded_named_and_trains(name, small_sources):
    settings = SMALL.get(name, {})
    one, again, other = (coterie.load(name, seed=s, **settings)[0] for s in (1, 1, 2))
    assert one.name == name
    assert torch.equal(one.train.x, again.train.x)
    assert not (torch.equal(one.train.x, other.train.x) and torch.equal(one.train.y, other.train.y))
    federation, task = coterie.load(name, seed=1, **settings)
    if federation.cluster is not None:
        assert len(federation.cluster) == len(federation)
    run = coterie.simulate(
        IFCA(k=2, steps=1, batch=5, lr=0.01, start="random"), federation, task, rounds=1, seed=1
    )
    assert np.isfinite(next(v for n, v in run.metrics.items() if n.endswith("loss")))


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


def test_each_cluster_swaps_its_own_two_labels(small_sources):
    federation, _ = coterie.load("label-swap-mnist", clients=4, alpha=0.0)
    images, labels = sources.load_mnist("train")
    true = {
        image.numpy().tobytes(): label for image, label in zip(images, labels.tolist(), strict=True)
    }
    for p in range(4):
        changed = set()
        for part in (federation.train, federation.test):
            for image, label in zip(*part.client(p), strict=True):
                if true[image.numpy().tobytes()] != label:
                    changed.add((true[image.numpy().tobytes()], int(label)))
        assert changed == {(p, 8 - p), (8 - p, p)}


def test_a_writers_digits_stay_together_and_series_are_the_clusters(small_sources):
    federation, _ = coterie.load("mnist-writers")
    assert len(federation) == 50
    assert federation.cluster.tolist() == [0, 1] * 25
    assert int(federation.train.sizes.sum() + federation.test.sizes.sum()) == 600


def test_femnist_takes_the_split_of_the_files_when_asked(small_sources):
    federation, _ = coterie.load("femnist", train_share=0.0)
    assert federation.train.sizes.tolist() == [54] * 10
    assert federation.test.sizes.tolist() == [6] * 10


def test_celeba_leaves_out_people_with_few_images(small_sources):
    assert len(coterie.load("celeba")[0]) == 5
    assert len(coterie.load("celeba", people=2)[0]) == 2
    with pytest.raises(SettingError, match="nobody in CelebA's files has 9 images"):
        coterie.load("celeba", fewest=9)


@pytest.mark.parametrize("name", ["gaussian-clusters", "subspace-clusters", "mnist-digits"])
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


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("mnist-writers", {}, [str(100 + i) for i in range(50)]),
        ("femnist", {}, [f"f{i:04d}_{i}" for i in range(10)]),
        ("femnist", {"train_share": 0.0}, [f"f{i:04d}_{i}" for i in range(10)]),
        ("celeba", {"people": 3}, ["2", "3", "5"]),
    ],
)
def test_clients_that_are_people_have_their_names(small_sources, name, settings, names):
    federation, _ = coterie.load(name, **settings)
    assert list(federation.clients) == names


def test_fpfc_sizes_are_heavy_tailed_and_capped():
    free, capped = (coterie.load("fpfc-synthetic", clients=300, most=most)[0] for most in (0, 500))
    sizes = [f.train.sizes + f.test.sizes for f in (free, capped)]
    assert sizes[0].max() > 50 * sizes[0].median()
    assert sizes[1].max() == 500
    assert sizes[0].min() >= 250
    assert bool((sizes[0] % 5 == 0).all())


def test_rows_drawn_in_pieces_are_split_as_rows_that_are_there_at_once():
    sizes = np.array([7, 2, 11])
    x = np.arange(20 * synthetic.FEATURES, dtype=np.float32).reshape(20, -1)
    y = np.arange(20)
    pieces = [(0, 0, 7), (1, 7, 9), (2, 9, 13), (2, 13, 17), (2, 17, 20)]
    drawn = ((i, x[begin:end], y[begin:end]) for i, begin, end in pieces)
    found = synthetic.gathered(sizes, drawn, 0.8, 5)
    parts = split_parts(torch.arange(20).split(sizes.tolist()), 0.8, 5)
    for samples, part in zip(found, parts, strict=True):
        expected = Samples.picked(torch.from_numpy(x), torch.from_numpy(y), part)
        assert torch.equal(samples.x, expected.x)
        assert torch.equal(samples.y, expected.y)
        assert torch.equal(samples.offsets, expected.offsets)


HEAVY = """
import resource
import coterie

def most():  # KiB held at once so far
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = most()
federation, task = coterie.load("fpfc-synthetic", clients=400, most=0, seed=0)
coterie.simulate(coterie.FedAvg(steps=1), federation, task, rounds=1)
data = sum(p.x.nbytes + p.y.nbytes for p in (federation.train, federation.test)) / 1024
print((most() - before) / data)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in KiB on Linux only")
def test_a_heavy_tailed_federation_takes_no_more_than_twice_its_data():
    # 289 MiB, a client of half a million rows among them.
    answer = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert float(answer.stdout) < 2


def test_the_clusters_of_fpfc_disagree_about_labels_but_each_is_learnable():
    federation, task = coterie.load("fpfc-synthetic", clients=8, most=600)
    oracle = coterie.simulate(coterie.Oracle(lr=0.5), federation, task, rounds=30, evaluate=30)
    fedavg = coterie.simulate(coterie.FedAvg(lr=0.5), federation, task, rounds=30, evaluate=30)
    assert oracle.metrics["accuracy"] > fedavg.metrics["accuracy"] + 0.1


def test_spread_zero_makes_leaf_clients_alike():
    def spread(**settings):
        federation, _ = coterie.load("leaf-synthetic", clients=40, most=200, **settings)
        means = torch.stack([federation.train.client(i)[0].mean() for i in range(40)])
        return means.std().item()

    assert spread(spread_features=0.0) < 0.3 < spread(spread_features=4.0)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("rotated-cifar", {"rotations": 3}, "must be 1, 2 or 4, got 3"),
        ("label-swap-mnist", {"groups": 5}, "`groups` of LabelSwapMnist must be at most 4, got 5"),
        ("label-swap-mnist", {"samples": 99999}, "must be at most 600, got 99999"),
        ("gaussian-clusters", {"heterogeneity": 1.5}, "must lie in 0 to 1, got 1.5"),
        (
            "subspace-clusters",
            {"rank": 64},
            "`rank` of SubspaceClusters must be at most `features`",
        ),
        ("mnist-digits", {"samples": 5000}, "samples of cluster 0 are asked for, but there are 60"),
        ("digits", {"split": "even"}, "must be one of iid, dirichlet, shards, got even"),
        ("fpfc-synthetic", {"clients": 2}, "must be at least `groups`, 4, got 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, sentence, small_sources):
    with pytest.raises(SettingError, match=sentence):
        coterie.load(name, **settings)


def test_no_two_federations_share_a_class():
    for one, other in itertools.combinations(FEDERATIONS.values(), 2):
        assert one is not other
