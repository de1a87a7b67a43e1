"""What holds for every federation."""

import numpy as np
import pytest
import torch

import coterie
from coterie import IFCA
from coterie.core.errors import SettingError
from coterie.shelves import FEDERATIONS

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
    "leaf-generator": {"clients": 8},
    "mnist-digits": {"clients": 4, "samples": 10},
    "mnist-digit-rotations": {"samples": 10},
    "mnist-representations": {"samples": 10},
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
        ("rotated-cifar", {"rotations": 3}, "must be 1, 2 or 4, got 3"),
        ("label-swap-mnist", {"groups": 5}, "`groups` of LabelSwapMnist must be at most 4, got 5"),
        ("label-swap-mnist", {"samples": 99999}, "must be at most 600, got 99999"),
        ("gaussian-clusters", {"heterogeneity": 1.5}, "must lie in 0 to 1, got 1.5"),
        (
            "subspace-clusters",
            {"rank": 64},
            "`rank` of SubspaceClusters must be at most `features`",
        ),
        ("mnist-representations", {"features": 2049}, "must be at most 2048, got 2049"),
        ("mnist-representations", {"clusters": "digit"}, "one of rotations, digits, got digit"),
        (
            "mnist-representations",
            {"samples": 61, "heterogeneity": 1.0},
            "asked for, but there are 60",
        ),
        ("mnist-digits", {"samples": 5000}, "samples of cluster 0 are asked for, but there are 60"),
        ("digits", {"split": "even"}, "must be one of iid, dirichlet, shards, got even"),
        ("fpfc-synthetic", {"clients": 2}, "must be at least `groups`, 4, got 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, sentence, small_sources):
    with pytest.raises(SettingError, match=sentence):
        coterie.load(name, **settings)
