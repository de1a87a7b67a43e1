"""What the tasks share: a network, its flat vector, and how a plain loss is scored."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from coterie.core import seeds
from coterie.core.errors import DataError, SettingError
from coterie.core.layout import Layout
from coterie.core.sample_kinds import rows_of_extremes, sample_kinds
from coterie.core.samples import Inputs, Padded, as_batch
from coterie.tensors.products import SummedProducts

OUTPUTS = {  # by the number of their axes
    1: "one log-probability per sample",
    2: "one row of outputs per sample",
    3: "one row of outputs per token of each sample",
}
PADDINGS = ("lengths", "mask", "none")  # what a network is told of padding


class NetworkTask(ABC):
    """A network, the layout of its flat vector, and how a starting model is drawn.

    `network` is a module, or a function that builds one. A module brings its weights: models start
    with them. A function is called again for every draw, so that it is the way to random weights.
    Frozen weights are those of the module, or of the first that the function builds; that one is
    built under a fixed seed, so that they are the same in every process. Features are divided by
    `scale` before the network sees them, so that pixels can be stored as bytes; of several inputs,
    those that are bytes.

    The network is called with the samples of a batch. Several inputs are as many arguments, in
    their order. Sequences of their own lengths come padded with zeros to the longest of the batch,
    [n, L, ...], and `padding` says what follows them: their `lengths` [n], a `mask` [n, L] that is
    true where there is padding (as `src_key_padding_mask` of PyTorch's transformers), or `none`.
    """

    predicts = True
    losses_at_least_zero = False
    losses_are_squared_errors = False

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        *,
        scale: float = 1.0,
        padding: str = "lengths",
    ) -> None:
        self.scale, self.padding = scale, padding
        if padding not in PADDINGS:
            raise SettingError(
                f"`padding` of a task must be one of {', '.join(PADDINGS)}, got {padding}"
            )
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

    @property
    def build(self) -> Callable[[], nn.Module] | None:
        """The function that builds the network; None where a module brought its weights."""
        return self._build

    @property
    def side_by_side(self) -> bool:
        """Models are trained one by one, but for stacks of linear layers."""
        return False

    def gradient_inputs(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor | None:
        """None: the losses are differentiated, whatever the network is."""
        return None

    def model_gradients(
        self, tensors: dict[str, Tensor], inputs: Tensor, y: Tensor, weight: Tensor
    ) -> Sequence[Tensor | SummedProducts]:
        """Nothing is asked for what there are no `gradient_inputs` for."""
        raise NotImplementedError

    def draw(self, generator: torch.Generator) -> Tensor:
        """A starting model [d]: of a network built anew, or the weights that a module brought."""
        if self._build is None:
            return self.layout.flatten(self.module)
        return self.layout.flatten(build_seeded(self._build, generator.initial_seed()))

    def double(self) -> Self:
        """The same task in double precision, for checks that rounding must not disturb."""
        other, build = copy.copy(self), self._build
        other._build = None if build is None else lambda: build().double()
        other.module = copy.deepcopy(self.module).double()
        other.layout = Layout(other.module)
        other._feature_type = None if self._feature_type is None else other.layout.dtype
        return other

    def inputs(self, x: Any) -> Any:
        """Features in the type and scale that the network takes."""
        if not isinstance(x, Tensor):
            return x.map(self._one_of_several)
        converted = x if self._feature_type is None else x.to(self._feature_type)
        if self.scale == 1.0:
            return converted
        # What was just made is scaled in place: bytes become numbers several times faster.
        return x / self.scale if converted is x else converted.div_(self.scale)

    def _one_of_several(self, values: Tensor) -> Tensor:
        """The numbers of one input; whole ones stay so for networks that look them up."""
        if self._feature_type is None and not values.is_floating_point():
            return values
        scale = self.scale if values.dtype == torch.uint8 else 1.0
        converted = values.to(self.layout.dtype)
        return converted if scale == 1.0 else converted / scale

    def arguments(self, x: Any) -> tuple[Tensor, ...]:
        """What the network is called with for a batch: each input, padding told behind it."""
        if isinstance(x, Tensor):
            return (x,)
        if isinstance(x, Inputs):
            return tuple(each for part in x.parts.values() for each in self.arguments(part))
        padded: Padded = x.trim()
        if self.padding == "none":
            return (padded.values,)
        return padded.values, padded.lengths if self.padding == "lengths" else ~padded.mask

    @abstractmethod
    def losses(self, output: Tensor, y: Any) -> Tensor:
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

    def score(self, output: Tensor, y: Any, mask: Tensor) -> Tensor:
        """Per client: samples and summed loss, [m, 2]."""
        weight = mask.double()
        loss = (self.losses(output, y).double() * weight).sum(1)
        return torch.stack([weight.sum(1), loss], 1)

    def sample_counts(self, scores: Tensor) -> Tensor:
        """How many samples each client's sums [m, s] are of, [m]."""
        return scores[:, 0]

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """The mean loss."""
        return {"loss": scores[:, 1] / scores[:, 0]}

    def probe_stored(self, x: Any, axes: int = 2) -> Tensor:
        """The outputs for the first two of stored samples.

        A network that looks words up is also tried on the smallest and the largest of them all.
        """
        if self._feature_type is None:
            rows = rows_of_extremes(x)
            if len(rows):
                self.probe(x[rows], axes)
        return self.probe(x[:2], axes)

    def probe(self, x: Any, axes: int = 2) -> Tensor:
        """The outputs [n, c] for a few samples x [n, ...]; refuse what the network cannot take.

        With 3 `axes` they are [n, L, c], with 1 they are [n].
        """
        name = type(self.module).__name__
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                output: Tensor = self.module(*self.arguments(self.inputs(as_batch(x)).clone()))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            shape = list(x.shape[1:]) if isinstance(x, Tensor) else kinds_text(x)
            raise DataError(
                f"the module {name} cannot take samples of shape {shape}: {reason}"
            ) from error
        finally:
            self.module.train(was_training)
        shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if not isinstance(output, Tensor) or output.dim() != axes or len(output) != len(x):
            raise DataError(
                f"the module {name} must give {OUTPUTS[axes]}, got {shape} for {len(x)} samples"
            )
        return output


def for_each_sample(shares: Tensor, outputs: Tensor) -> Tensor:
    """Shares [m, k] as factors of outputs [k, m, n, ...]."""
    return shares.T.to(outputs.dtype).view(*outputs.shape[:2], *(1 for _ in outputs.shape[2:]))


def kinds_text(x: Any) -> str:
    """What samples are like, in words."""
    return ", ".join(map(str, sample_kinds(x)))


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What a function builds under a seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
