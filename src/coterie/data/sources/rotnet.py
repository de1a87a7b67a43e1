"""RotNet: a network that says by which of four angles an image of MNIST is rotated.

Gidaris, Singh, Komodakis: Unsupervised Representation Learning by Predicting Image Rotations, ICLR
2018, https://arxiv.org/abs/1803.07728. No label is needed to train it, and what its last
convolution gives for an image is a representation of the image. The UIFCA paper trains one
centrally on rotated MNIST, an AlexNet, and clusters these representations.

This one is AlexNet at half its width with kernels of 3 x 3, for images of 32 x 32. It is trained
once for each seed and kept in the cache with a checksum. Nobody publishes it: its weights depend on
the machine in their last digits, so that machines that are to agree must share the file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core import seeds
from coterie.core.errors import DataError
from coterie.data.sources.mnist import load_mnist
from coterie.data.sources.source import Mirror, Source, source_folders
from coterie.files import write_atomically
from coterie.tensors.digest import read_tensors

NAME = "mnist-rotnet"
SIDE = 32  # pixels of an image, with its black margin
BATCH = 500  # images that are represented at a time
SECONDS = 110  # that training takes on one core, about


@dataclass(frozen=True)
class RotNetTraining:
    """How the network is trained: Adam with one cycle of the step size."""

    steps: int = 400
    images: int = 64  # of a step, each in all four rotations
    lr: float = 1e-3  # largest step size


TRAINING = RotNetTraining()


class RotNet(nn.Module):
    """AlexNet for grey images [n, 32, 32] from 0 to 1; its outputs [n, 4] are of the angles."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 96, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(96, 192, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(192, 128, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
        )
        self.classifier = nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        angles: Tensor = self.classifier(self.convolutions(x[:, None]))
        return angles

    @torch.no_grad()
    def represent(self, images: Tensor) -> Tensor:
        """The last convolution of images of bytes [n, 28, 28], before its ReLU: [n, 2048]."""
        self.eval()
        parts = (self.convolutions(prepare_images(part)[:, None]) for part in images.split(BATCH))
        return torch.cat([part.flatten(1) for part in parts])


def prepare_images(images: Tensor) -> Tensor:
    """Images of bytes [n, h, w] from 0 to 1, in the middle of 32 x 32 pixels."""
    margin = (SIDE - images.shape[1]) // 2
    return functional.pad(images.float() / 255, (margin,) * 4)


def train_rotnet(images: Tensor, training: RotNetTraining, seed: int) -> RotNet:
    """A network that was trained on images of bytes [n, 28, 28] in all four rotations."""
    order = seeds.generator(seed, "rotnet", "images")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "rotnet", "weights"))
        network = RotNet().train()
        optimizer = torch.optim.Adam(network.parameters(), training.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, training.lr, total_steps=training.steps
        )
        waiting = torch.arange(0)
        for _ in range(training.steps):
            if len(waiting) < training.images:
                waiting = torch.randperm(len(images), generator=order)
            upright = prepare_images(images[waiting[: training.images]])
            waiting = waiting[training.images :]
            x = torch.cat([torch.rot90(upright, r, (1, 2)) for r in range(4)])
            angle = torch.arange(4).repeat_interleave(len(upright))
            optimizer.zero_grad()
            functional.cross_entropy(network(x), angle).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def say_on_stderr(text: str) -> None:
    """Tell the user, without disturbing what is written on stdout."""
    print(text, file=sys.stderr, flush=True)


def load_rotnet(images: Tensor, seed: int, say: Callable[[str], None] = say_on_stderr) -> RotNet:
    """The network of a seed that was trained on these images, from the cache or trained now."""
    made_from = describe_training(images, seed)
    folders = source_folders(NAME)
    for folder in folders:
        path = folder / network_file(made_from)
        if path.is_file():
            try:
                return read_rotnet(path, made_from)
            except DataError as error:
                say(f"{NAME}: {error}; it is trained anew")
    return make_rotnet(images, seed, folders, say)


def make_rotnet(
    images: Tensor, seed: int, folders: list[Path], say: Callable[[str], None]
) -> RotNet:
    """Train the network of a seed and keep it in the first of the folders that can be written."""
    say(f"{NAME}: training the network of seed {seed}, once; some {SECONDS} s on one core")
    begin = time.perf_counter()
    network = train_rotnet(images, TRAINING, seed)
    seconds = time.perf_counter() - begin
    made_from = describe_training(images, seed)
    for folder in folders:
        path = folder / network_file(made_from)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_rotnet(path, network, made_from)
        except OSError:
            continue
        say(f"{NAME}: trained in {seconds:.0f} s and kept as {path}")
        return network
    say(
        f"{NAME}: trained in {seconds:.0f} s, but {folders[0]} cannot be written to: it is not kept"
    )
    return network


def describe_training(images: Tensor, seed: int) -> str:
    """All that makes a network what it is, as text."""
    digest = hashlib.sha256(images.contiguous().numpy().data).hexdigest()
    return json.dumps({"seed": seed, **asdict(TRAINING), "images_sha256": digest}, sort_keys=True)


def network_file(made_from: str) -> str:
    """The name of the file of a network, by its seed and all that makes it what it is."""
    key = hashlib.sha256(made_from.encode()).hexdigest()[:12]
    return f"rotnet-{json.loads(made_from)['seed']}-{key}.safetensors"


def write_rotnet(path: Path, network: RotNet, made_from: str) -> None:
    """Write a network with what it was made from and a checksum."""
    weights = network.state_dict()
    about = {"made_from": made_from, "sha256": weights_digest(weights)}
    write_atomically(path, lambda file: safetensors.torch.save_file(weights, file, about))


def read_rotnet(path: Path, made_from: str = "") -> RotNet:
    """The network in a file; refuse one that is damaged, or made from something else."""
    network = RotNet()
    try:
        weights, about = read_tensors(path)
        network.load_state_dict(weights)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path} is damaged, or holds something else") from error
    if weights_digest(weights) != about.get("sha256"):
        raise DataError(f"{path} is damaged: its checksum is wrong")
    if made_from and about.get("made_from") != made_from:
        raise DataError(f"{path} was made from other images or in another way")
    return network.eval()


def weights_digest(weights: dict[str, Tensor]) -> str:
    """The SHA-256 of all weights, by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().numpy().data)
    return digest.hexdigest()


def find_networks(folder: Path) -> list[Path]:
    """The networks of seed 0 in a folder, which is the seed that federations take by default."""
    return sorted(folder.glob("rotnet-0-*.safetensors"))


def check_networks(folder: Path) -> None:
    """Refuse a folder in which a network is damaged."""
    for path in find_networks(folder):
        read_rotnet(path)


def train_into(folder: Path, say: Callable[[str], None]) -> None:
    """Train the network of seed 0 into a folder."""
    for path in find_networks(folder):
        path.unlink()  # it is damaged, or else nobody would train it again
    make_rotnet(load_mnist("train")[0], 0, [folder], say)


SOURCE = Source(
    NAME,
    "a network that represents images of MNIST, trained here",
    find_networks,
    check_networks,
    (Mirror("training it on mnist", train_into),),
)
