"""Codes: a model encodes samples, and a good one for a sample has its centre near its code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot

from coterie.core.errors import SettingError
from coterie.tasks.network import NetworkTask

PARTS = ("generator", "critic", "encoder", "centre", "noise", "classes")  # of the network
DEVIATION = 0.1  # standard deviation of the noise in z, as ClusterGAN has it


class Codes(NetworkTask):
    """A generative adversarial network with an encoder, and a centre among the encoder's codes.

    The network gives what is left of a sample's code if the centre is subtracted; the loss of a
    sample is its squared length. Nothing is predicted and labels are not looked at. A network has
    the parts `generator`, `critic` and `encoder`, a buffer `centre`, and says by `noise` and
    `classes` how many numbers of z are which: see `GanModule`. It is a module, or a function that
    builds one for a number of classes.

    >>> from coterie.networks.gan import GanModule
    >>> task = Codes(GanModule([4], classes=2, noise=3, hidden=8))
    >>> task.losses(task.module(torch.zeros(6, 4)), None).shape
    torch.Size([6])
    """

    predicts = False

    def __init__(
        self,
        network: nn.Module | Callable[[int], nn.Module],
        *,
        classes: int = 2,
        scale: float = 1.0,
        padding: str = "lengths",
    ) -> None:
        built = network if isinstance(network, nn.Module) else partial(network, classes)
        super().__init__(built, scale=scale, padding=padding)
        if not encodes(self.module):
            raise SettingError(
                f"the network of Codes must have {', '.join(PARTS)}, "
                f"got {type(self.module).__name__}"
            )
        self.network = network
        self.noise, self.classes = (int(getattr(self.module, name)) for name in PARTS[-2:])

    def with_classes(self, classes: int) -> Codes:
        """The same with another number of classes; a module that was brought stays what it is."""
        if isinstance(self.network, nn.Module) or classes == self.classes:
            return self
        other = Codes(self.network, classes=classes, scale=self.scale, padding=self.padding)
        return other.double() if self.layout.dtype == torch.float64 else other

    def losses(self, output: Tensor, y: Any) -> Tensor:
        """Squared distances of codes from the centre: [..., n, c] gives [..., n]."""
        return output.square().sum(-1)

    def targets(self, y: Any) -> Any:
        return y

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse samples that the network does not give a row of numbers each."""
        self.probe_stored(x)

    def encode(self, model: Tensor, x: Tensor) -> Tensor:
        """The codes [n, c] of samples [n, ...] under a model [d], whatever its centre."""
        tensors = self.layout.unflatten(model)
        tensors["centre"] = torch.zeros_like(tensors["centre"])
        with torch.no_grad():
            codes: Tensor = functional_call(self.module, tensors, x)
        return codes

    def with_centres(self, model: Tensor, centres: Tensor) -> Tensor:
        """A model [d] with each of some centres [k, c] in turn, [k, d]."""
        where = self.layout.part("centre").to(model.device)
        models = model.repeat(len(centres), 1)
        models[:, where] = centres.to(model.dtype)
        return models

    def draw_latent(
        self, count: int, generator: torch.Generator, label: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What `count` samples are made of: noise and one-hot classes z, and the classes [n].

        They are drawn on the CPU, the classes all alike unless a `label` [n] says which.
        """
        noise = DEVIATION * torch.randn(count, self.noise, generator=generator, device="cpu")
        if label is None:
            label = torch.randint(self.classes, (count,), generator=generator, device="cpu")
        z = torch.cat([noise, one_hot(label, self.classes)], 1)
        return z.to(self.layout.dtype), label

    def generate(self, model: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Samples [count, ...] of the class that is strongest in the centre of a model [d]."""
        tensors = self.layout.unflatten(model)
        label = tensors["centre"][self.noise :].argmax().cpu().expand(count)
        z, _ = self.draw_latent(count, generator, label)
        start = "generator."
        own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
        with torch.no_grad():
            made: Tensor = functional_call(self.module.get_submodule("generator"), own, z)
        return made


def encodes(module: nn.Module) -> bool:
    """Whether a network has the parts of one that Codes takes."""
    return all(hasattr(module, name) for name in PARTS)
