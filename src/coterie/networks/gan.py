"""Generator, critic and encoder in one module: what ClusterGAN trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least
from coterie.networks.mlp import feature_count

SLOPE = 0.2  # of LeakyReLU below zero


@dataclass(frozen=True, kw_only=True)
class Gan(Settings):
    """Perceptrons that make samples of noise and a class, criticise samples, and encode them."""

    hidden: int = setting(
        0,
        "width of the two hidden layers of each perceptron; 0: 256 for images, 64 for vectors",
        at_least(0),
    )
    latent: int = setting(10, "numbers of noise that a sample is made of", at_least(1))

    def module(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """The three networks, with as many classes as outputs."""
        hidden = self.hidden or (256 if len(shape) > 1 else 64)
        return GanModule(shape, outputs, self.latent, hidden)


class GanModule(nn.Module):
    """Three perceptrons, and a centre among codes.

    `generator` makes samples [n, ...] of z [n, noise + classes], which is noise and a one-hot
    class; pixels of images are from 0 to 1. `critic` gives a number [n, 1] for each sample.
    `encoder` looks for z: its last `classes` numbers are logits. There is no batch normalisation.

    >>> module = GanModule([4, 4], classes=3, noise=2, hidden=8)
    >>> module.generator(torch.zeros(5, 5)).shape, module(torch.zeros(5, 4, 4)).shape
    (torch.Size([5, 4, 4]), torch.Size([5, 5]))
    """

    centre: Tensor

    def __init__(self, shape: Sequence[int], classes: int, noise: int, hidden: int) -> None:
        super().__init__()
        features, code = feature_count(shape), noise + classes
        pixels = [nn.Sigmoid()] if len(shape) > 1 else []
        makes = perceptron(code, hidden, features)
        self.generator = nn.Sequential(*makes, *pixels, nn.Unflatten(1, tuple(shape)))
        self.critic = nn.Sequential(nn.Flatten(), *perceptron(features, hidden, 1))
        self.encoder = nn.Sequential(nn.Flatten(), *perceptron(features, hidden, code))
        self.register_buffer("centre", torch.zeros(code))
        self.noise, self.classes = noise, classes

    def forward(self, x: Tensor) -> Tensor:
        """How far the codes of samples are from the centre, [n, noise + classes].

        A code is the noise that the encoder finds, and the probabilities of classes.
        """
        z = self.encoder(x)
        code = torch.cat([z[:, : self.noise], z[:, self.noise :].softmax(1)], 1)
        return code - self.centre


def perceptron(inputs: int, hidden: int, outputs: int) -> list[nn.Module]:
    """The layers of a perceptron with two hidden layers."""
    return [
        nn.Linear(inputs, hidden),
        nn.LeakyReLU(SLOPE),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(SLOPE),
        nn.Linear(hidden, outputs),
    ]
