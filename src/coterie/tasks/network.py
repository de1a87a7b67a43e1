"""What the tasks share: a network, its flat vector, and how a plain loss is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.errors import DataError, SettingError
from coterie.core.layout import Layout


class NetworkTask(ABC):
    """A network, the layout of its flat vector, and how a starting model is drawn.

    `network` is a module, or a function that builds one. A module brings its weights: models start
    with them. A function is called again for every draw, so that it is the way to random weights.
    Frozen weights are those of the module, or of the first that the function builds; that one is
    built under a fixed seed, so that they are the same in every process. Features are divided by
    `scale` before the network sees them, so that pixels can be stored as bytes.
    """

    predicts = True
    losses_at_least_zero = False
    losses_are_squared_errors = False

    def __init__(self, network: nn.Module | Callable[[], nn.Module], *, scale: float = 1.0) -> None:
        self.scale = scale
        if not isinstance(network, nn.Module) and not callable(network):
            raise SettingError(
                f"a task needs a torch.nn.Module or a function that builds one, got {network!r}"
            )
        self._build = None if isinstance(network, nn.Module) else network
        self.module = (
            network
            if isinstance(network, nn.Module)
            else build_seeded(network, seeds.derive(0, "frozen weights"))
        )
        if not isinstance(self.module, nn.Module):
            raise SettingError(
                f"the function that builds the network must return a torch.nn.Module, "
                f"got {type(self.module).__name__}"
            )
        self.layout = Layout(self.module)
        # Features stay integers only for networks that look them up.
        embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in self.module.modules())
        self._feature_type = None if embeds else self.layout.dtype

    def draw(self, generator: torch.Generator) -> Tensor:
        """A starting model [d]: of a network built anew, or the weights that a module brought."""
        if self._build is None:
            return self.layout.flatten(self.module)
        return self.layout.flatten(build_seeded(self._build, generator.initial_seed()))

    def inputs(self, x: Tensor) -> Tensor:
        """Features in the type and scale that the network takes."""
        converted = x if self._feature_type is None else x.to(self._feature_type)
        if self.scale == 1.0:
            return converted
        # What was just made is scaled in place: bytes become numbers several times faster.
        return x / self.scale if converted is x else converted.div_(self.scale)

    @abstractmethod
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample: outputs [..., n, c] and targets [..., n] give [..., n]."""

    def output_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """The derivative of every sample's loss by its outputs [m, c, n], features first.

        A task that can write it down is faster than this, which asks automatic differentiation.
        """
        leaf = output.detach().requires_grad_()
        with torch.enable_grad():
            total = self.losses(leaf.mT, y).sum()
        return torch.autograd.grad(total, leaf)[0]

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """The mean of outputs [k, m, n, ...], weighted by the shares [m, k]: [m, n, ...]."""
        return (outputs * for_each_sample(shares, outputs)).sum(0)

    def score(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Per client: samples and summed loss, [m, 2]."""
        weight = mask.double()
        loss = (self.losses(output, y).double() * weight).sum(1)
        return torch.stack([weight.sum(1), loss], 1)

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """The mean loss."""
        return {"loss": scores[:, 1] / scores[:, 0]}

    def probe(self, x: Tensor) -> Tensor:
        """The outputs [n, c] for a few samples x [n, ...]; refuse what the network cannot take."""
        name = type(self.module).__name__
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                output: Tensor = self.module(self.inputs(x).clone())
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(
                f"the module {name} cannot take samples of shape {list(x.shape[1:])}: {reason}"
            ) from error
        finally:
            self.module.train(was_training)
        shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(x):
            raise DataError(
                f"the module {name} must give one row of outputs per sample, "
                f"got {shape} for {len(x)} samples"
            )
        return output


def for_each_sample(shares: Tensor, outputs: Tensor) -> Tensor:
    """Shares [m, k] as factors of outputs [k, m, n, ...]."""
    return shares.T.to(outputs.dtype).view(*outputs.shape[:2], *(1 for _ in outputs.shape[2:]))


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What a function builds under a seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
