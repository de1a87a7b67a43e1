import re
import shutil

import pytest
import torch

from coterie.core.errors import DataError
from coterie.data import sources
from coterie.data.federations.representations import REPRESENTATION
from coterie.data.sources import rotnet
from coterie.data.sources.rotnet import RotNetTraining, load_rotnet, train_rotnet

TINY = RotNetTraining(steps=2, images=4)


def drawn(n=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 28, 28), generator=generator).byte()


def upright(n=64):
    """Images that are bright at the top."""
    images = drawn(n) // 8
    images[:, :10] += 200
    return images


def same(one, other):
    weights = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in weights)


@pytest.fixture
def tiny(monkeypatch, folder):
    """A network that is trained in no time, and an empty cache."""
    monkeypatch.setattr(rotnet, "TRAINING", TINY)
    monkeypatch.setattr(rotnet, "load_mnist", lambda part: (drawn(), torch.zeros(12)))
    return folder / "mnist-rotnet"


def test_a_network_learns_which_way_up_images_are():
    network = train_rotnet(upright(), RotNetTraining(steps=40, images=8), 0)
    x = torch.cat([torch.rot90(rotnet.prepare_images(upright()), r, (1, 2)) for r in range(4)])
    angle = torch.arange(4).repeat_interleave(64)
    assert not network.training
    assert (network(x).argmax(1) == angle).float().mean() > 0.95


def test_training_goes_by_its_seed_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, again, other = (train_rotnet(drawn(), TINY, seed) for seed in (0, 0, 1))
    assert same(one, again)
    assert not same(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(train_rotnet(drawn(3), TINY, 0), train_rotnet(drawn(3), TINY, 0))  # fewer than 4


def test_a_representation_is_the_last_convolution_before_its_relu():
    network, images = train_rotnet(drawn(), TINY, 0), drawn(7)
    found = network.represent(images)
    assert found.shape == (7, REPRESENTATION)
    assert (found < 0).any()
    assert not found.requires_grad
    assert torch.allclose(found[3:4], network.represent(images[3:4]), atol=1e-5)
    x = torch.nn.functional.pad(images.float() / 255, (2, 2, 2, 2))
    assert torch.allclose(network(x), network.classifier(found.view(7, 128, 4, 4)), atol=1e-5)


def test_a_network_is_trained_once_and_then_read(tiny, monkeypatch):
    said = []
    first = load_rotnet(drawn(), 3, said.append)
    assert "training the network of seed 3, once; some 110 s" in said[0]
    assert str(tiny) in said[1]
    assert re.search(r"trained in \d+ s", said[1])
    monkeypatch.setattr(rotnet, "train_rotnet", None)
    assert same(load_rotnet(drawn(), 3, said.append), first)
    assert len(said) == 2


def test_other_seeds_images_and_training_have_files_of_their_own(tiny, monkeypatch):
    load_rotnet(drawn(), 0, print)
    load_rotnet(drawn(), 1, print)
    load_rotnet(drawn(seed=5), 0, print)
    monkeypatch.setattr(rotnet, "TRAINING", RotNetTraining(steps=1, images=4))
    load_rotnet(drawn(), 0, print)
    assert len(list(tiny.iterdir())) == 4


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[-1000] ^= 1
    path.write_bytes(contents)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (flip, "is damaged: its checksum is wrong"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "is damaged, or holds something"),
        (lambda path: path.write_bytes(b""), "is damaged, or holds something"),
        (lambda path: path.write_text("hello"), "is damaged, or holds something"),
        (
            lambda path: shutil.copy(next(path.parent.glob("rotnet-1-*")), path),
            "was made from other images or in another way",
        ),
    ],
)
def test_a_file_that_is_damaged_or_another_is_trained_anew(tiny, spoil, says):
    first, said = load_rotnet(drawn(), 0, print), []
    load_rotnet(drawn(), 1, print)
    (path,) = tiny.glob("rotnet-0-*")
    spoil(path)
    assert same(load_rotnet(drawn(), 0, said.append), first)
    assert says in said[0]
    assert str(path) in said[0]
    assert "trained anew" in said[0]
    said.clear()
    assert same(load_rotnet(drawn(), 0, said.append), first)
    assert not said


def test_where_the_first_folder_cannot_be_written_the_next_keeps_it(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file"))
    said = []
    first = load_rotnet(drawn(), 0, said.append)
    assert str(tmp_path / "cache") in said[-1]
    assert same(load_rotnet(drawn(), 0, said.append), first)
    assert len(said) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(load_rotnet(drawn(), 0, said.append), first)
    assert "cannot be written to: it is not kept" in said[-1]


def test_without_further_ado_lines_go_to_stderr(tiny, capsys):
    load_rotnet(drawn(), 0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "training the network" in err


def test_the_network_is_a_source_that_can_be_had_and_listed(tiny):
    said = []
    assert "not here; `coterie data get mnist-rotnet`" in sources.list_sources()
    assert sources.get("mnist-rotnet", said.append) == tiny
    assert str(tiny) in sources.list_sources()
    first = load_rotnet(drawn(), 0, said.append)
    assert sources.get("mnist-rotnet", said.append) == tiny
    assert said[-1] == "mnist-rotnet: it was already there"
    (path,) = tiny.iterdir()
    flip(path)
    with pytest.raises(DataError, match="checksum"):
        rotnet.check_networks(tiny)
    assert sources.get("mnist-rotnet", said.append) == tiny
    assert same(rotnet.read_rotnet(path), first)
