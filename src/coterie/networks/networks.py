"""Linear models, the multilayer perceptron, and the convolutional networks of the papers."""

from __future__ import annotations

from torch import nn

from coterie.networks.augment import ChannelsFirst, RandomCropFlip


def linear(features: int, outputs: int = 1, *, bias: bool = True) -> nn.Module:
    """A linear model on flattened samples.

    >>> sum(p.numel() for p in linear(60, 10).parameters())
    610
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs, bias=bias))


def mlp(features: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer with ReLU on flattened samples, PyTorch's default initialisation.

    >>> sum(p.numel() for p in mlp(784, 200, 10).parameters())
    159010
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def femnist_cnn(hidden: int = 2048, classes: int = 62) -> nn.Module:
    """LEAF's network for FEMNIST, on images [n, 28, 28]: two convolutions with pooling, two layers.

    >>> sum(p.numel() for p in femnist_cnn().parameters())
    6603710
    """
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def celeba_cnn(classes: int = 2) -> nn.Module:
    """LEAF's network for CelebA, on images [n, 84, 84, 3]: four convolutions, one layer."""
    blocks: list[nn.Module] = []
    for channels in (3, 32, 32, 32):
        blocks += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.MaxPool2d(2)]
        blocks += [nn.ReLU()]
    return nn.Sequential(ChannelsFirst(), *blocks, nn.Flatten(), nn.Linear(32 * 5 * 5, classes))


def cifar_cnn() -> nn.Module:
    """The network of the IFCA paper for CIFAR-10, on images [n, 32, 32, 3] in 0 to 1.

    Two convolutions of 5 x 5 with 64 channels, layers of 384 and 192; images are cropped to 24 x 24
    and flipped at random in training.
    """
    return nn.Sequential(
        ChannelsFirst(),
        RandomCropFlip(24),
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )
