import math

import pytest
import torch

import coterie
from coterie.core.errors import SettingError
from coterie.data import sources
from coterie.experiment.plan import complete_settings, make_plan
from coterie.networks.flows import RealNvpModule
from coterie.report.sample_sheets import sample_sheets

NAMES = ["mnist-digits", "mnist-digit-rotations"]


@pytest.fixture
def digits(monkeypatch):
    """Twenty images of each digit, whose pixels all have the digit as their value."""
    labels = torch.arange(10).repeat(20)
    images = labels.to(torch.uint8)[:, None, None].expand(200, 28, 28)
    monkeypatch.setattr(sources, "load_mnist", lambda part: (images, labels))


@pytest.fixture
def strokes(monkeypatch):
    """Twenty images of each digit: left half 0, right half 255, the top row 2."""
    labels = torch.arange(10).repeat(20)
    image = torch.zeros(28, 28, dtype=torch.uint8)
    image[:, 14:] = 255
    image[0] = 2
    monkeypatch.setattr(sources, "load_mnist", lambda part: (image.expand(200, 28, 28), labels))
    return image


def test_one_digit_is_rotated_or_all_of_them(digits):
    one, _ = coterie.load("mnist-digit-rotations", samples=10, digit=3)
    assert one.train.x.unique().tolist() == [3]
    mixed, _ = coterie.load("mnist-digit-rotations", samples=10, digit=-1)
    assert len(mixed.train.x.unique()) > 1
    with pytest.raises(SettingError, match="must be at most 9, got 10"):
        coterie.load("mnist-digit-rotations", digit=10)


def test_digits_are_the_clusters_in_the_order_given(digits):
    federation, _ = coterie.load("mnist-digits", digits="7,2", samples=3, clients=4)
    assert federation.train.x[:, 0, 0].tolist() == [[7, 2][y] for y in federation.train.y]
    assert set(federation.train.y.tolist()) == {0, 1}
    assert federation.classes == ("7", "2")
    assert (federation.class_count, federation.outputs) == (2, 2)
    alone, _ = coterie.load("mnist-digits", digits="4", samples=5, clients=3)
    assert alone.train.x.unique().tolist() == [4]
    every, _ = coterie.load("mnist-digits", samples=3)
    assert every.class_count == 10
    assert every.classes == ()


@pytest.mark.parametrize("wrong", ["2,2", "23", "a", "2,,3", ",", "10", "-1", "²", 3])
def test_what_is_no_list_of_digits_is_refused(wrong, digits):
    sentence = f"`digits` of MnistDigits must be different digits .* such as 2,3, got {wrong}"
    with pytest.raises(SettingError, match=sentence):
        coterie.load("mnist-digits", digits=wrong)


@pytest.mark.parametrize("name", NAMES)
def test_without_further_settings_pixels_are_the_bytes_of_the_source(name, small_sources):
    federation, _ = coterie.load(name, samples=5, seed=4)
    assert federation.train.x.dtype == torch.uint8
    assert federation.scale == 255
    images = sources.load_mnist("train")[0].flatten(1)
    for x, y in zip(federation.train.x, federation.train.y, strict=True):
        upright = torch.rot90(x, -int(y)) if "rotations" in name else x
        assert (images == upright.flatten()).all(1).any()


@pytest.mark.parametrize("name", NAMES)
def test_half_the_size_is_means_of_four_pixels(name, small_sources):
    whole, _ = coterie.load(name, samples=5, seed=4)
    half, _ = coterie.load(name, samples=5, seed=4, size=14)
    assert half.scale == 1
    blocks = whole.train.x.double().view(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    assert torch.allclose(half.train.x.double(), blocks, atol=1e-6)
    with pytest.raises(SettingError, match="must be 28 or 14, got 16"):
        coterie.load(name, size=16)


@pytest.mark.parametrize("size", [28, 14])
@pytest.mark.parametrize("name", NAMES)
def test_dequantised_pixels_lie_above_their_byte_by_less_than_one(name, size, small_sources):
    plain, _ = coterie.load(name, samples=5, seed=4)
    noisy, again = (
        coterie.load(name, samples=5, seed=4, size=size, dequantised=True)[0].train.x
        for _ in range(2)
    )
    assert torch.equal(noisy, again)
    width = 28 // size
    byte = plain.train.x.double().view(-1, size, width, size, width).mean((2, 4))
    noise = 256 * noisy.double() - byte
    assert noise.min() > -1e-4
    assert noise.max() < 1 + 1e-4
    assert noise.mean().item() == pytest.approx(0.5, abs=0.02)
    assert noise.std().item() == pytest.approx(12**-0.5, abs=0.02)
    assert noisy.min() >= 0
    assert noisy.max() < 1


def test_white_that_is_dequantised_stays_below_one(monkeypatch):
    white = torch.full((6000, 28, 28), 255, dtype=torch.uint8)
    monkeypatch.setattr(sources, "load_mnist", lambda part: (white, torch.zeros(6000)))
    federation, _ = coterie.load(
        "mnist-digit-rotations", digit=0, samples=1000, clients=2, dequantised=True
    )
    assert federation.train.x.max() < 1  # 255 + noise is 256 for one pixel in 2^17


@pytest.mark.parametrize("dequantised", [False, True])
def test_random_background_is_drawn_once_where_it_was_black(dequantised, strokes):
    settings = {"samples": 50, "clients": 2, "digit": 3, "seed": 4, "dequantised": dequantised}
    settings["heterogeneity"] = 1.0  # the first client's images are all upright
    with pytest.raises(SettingError, match="samples of cluster 0 are asked for"):
        coterie.load("mnist-digit-rotations", **settings)
    settings["samples"] = 20
    federation, _ = coterie.load("mnist-digit-rotations", background="random", **settings)
    again, _ = coterie.load("mnist-digit-rotations", background="random", **settings)
    assert torch.equal(federation.train.x, again.train.x)
    assert federation.scale == 1
    x = federation.train.client(0)[0]
    black, white = x[:, 1:, :14], x[:, 1:, 14:]
    assert white.min() >= 255 / 256
    assert black.mean().item() == pytest.approx(0.5, abs=0.02)
    assert black.std().item() == pytest.approx(12**-0.5, abs=0.02)
    assert not torch.equal(black[0], black[1])
    share = 0.56 if dequantised else 1.0  # a byte of 2 is below 0.01, or 2 + noise below 2.56
    kept = (x[:, 0] >= 2 / 256) & (x[:, 0] < 3 / 256)
    assert kept.float().mean().item() == pytest.approx(1 - share, abs=0.1)


def test_settings_of_pixels_do_not_change_which_samples_are_drawn(small_sources):
    plain, _ = coterie.load("mnist-digits", samples=7, seed=3)
    other, _ = coterie.load(
        "mnist-digits", samples=7, seed=3, size=14, dequantised=True, background="random"
    )
    assert torch.equal(plain.train.y, other.train.y)
    dark = plain.train.x.view(-1, 14, 2, 14, 2).float().mean((2, 4)) / 256 < 0.011
    near = (other.train.x - plain.train.x.view(-1, 14, 2, 14, 2).float().mean((2, 4)) / 256).abs()
    assert near[~dark].max() < 1 / 255


@pytest.mark.parametrize("settings", [{"size": 14}, {"dequantised": True, "background": "random"}])
@pytest.mark.parametrize("name", NAMES)
def test_pages_show_the_images_whatever_their_pixels(name, settings, small_sources):
    federation, _ = coterie.load(name, samples=5, **settings)
    cluster = torch.zeros(len(federation), dtype=torch.long)
    sheets = sample_sheets(federation, cluster, federation.train.y, seed=0)
    assert [sheet["cluster"] for sheet in sheets] == federation.train.y.unique().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_runs_from_before_these_settings_are_resumed_with_their_defaults(name):
    values = make_plan(["k-fed", name]).values()
    added = {"size", "dequantised", "background", "digits"} & set(values)
    older = {key: value for key, value in values.items() if key not in added}
    assert complete_settings("k-fed", name, older) == values


@pytest.mark.parametrize("name", ["mnist-digits", "mnist-digit-rotations"])
def test_images_suggest_flows_of_images_for_uifca(name, small_sources):
    plan = make_plan(["uifca", name, "size=14", "dequantised=true", "samples=5", "rounds=1"])
    run = plan.run(plan.config()).complete()
    assert isinstance(run.task.module, RealNvpModule)
    assert (run.algorithm.optimizer, run.algorithm.lr, run.algorithm.restarts) == ("adam", 0.001, 1)
    assert math.isfinite(run.metrics["train_loss"])
