"""Density: a model is a distribution, and a good one gives the samples a high probability."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.samples import as_batch
from coterie.networks.flow_gradients import (
    is_real_nvp_of_perceptrons,
    linear_flow_gradients,
    real_nvp_gradients,
    scaled_samples,
)
from coterie.networks.flows import LinearFlowModule
from coterie.tasks.network import NetworkTask, for_each_sample
from coterie.tensors.products import SummedProducts

SCALING = ("inputs.shift", "inputs.scale")  # the buffers by which a network scales its samples


class Density(NetworkTask):
    """A distribution of samples; the loss of a sample is its negative log-probability.

    The network gives one number per sample, log p(x): a flow, or any module of one's own that does.
    Nothing is predicted and labels are not looked at. A network with the method `generate`, which
    makes samples of standard normal noise [n, features], can be drawn from.

    >>> from coterie.networks.flows import LinearFlowModule
    >>> task = Density(LinearFlowModule([2]))
    >>> round(task.losses(task.module(torch.zeros(1, 2)), None).item(), 3)
    1.838
    """

    predicts = False

    @property
    def side_by_side(self) -> bool:
        """Models are faster side by side, but for convolutions, which are large."""
        parts = self.module.modules()
        return not any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in parts)

    @property
    def is_linear_flow(self) -> bool:
        """Whether models are Gaussian distributions, which sums of samples can be fitted to."""
        return isinstance(self.module, LinearFlowModule)

    def losses(self, output: Tensor, y: Any) -> Tensor:
        """Negative log-probabilities, [..., n] as the network's outputs are."""
        return -output

    def gradient_inputs(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor | None:
        """The scaled numbers of samples, for flows whose gradients are written out."""
        known = self.is_linear_flow or is_real_nvp_of_perceptrons(self.module)
        return scaled_samples(self.module, tensors, x) if known and not self.layout.frozen else None

    def model_gradients(
        self, tensors: dict[str, Tensor], inputs: Tensor, y: Tensor, weight: Tensor
    ) -> Sequence[Tensor | SummedProducts]:
        """Those of flows, written out."""
        if self.is_linear_flow:
            return linear_flow_gradients(tensors, inputs, weight)
        module: Any = self.module
        return real_nvp_gradients(module, tensors, inputs, weight)

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """The log-probabilities [m, n] of a mixture; outputs are [k, m, n], shares [m, k]."""
        return (outputs + for_each_sample(shares, outputs).log()).logsumexp(0)

    def targets(self, y: Any) -> Any:
        return y

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse samples that the network does not give one log-probability each."""
        self.probe_stored(x, axes=1)

    def with_scaling(self, models: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Models [..., d] that centre samples at `shift` and divide them by one `scale`.

        Those of a network that does not scale its samples stay as they are (see `scales`).
        """
        if not self.scales:
            return models
        scaled = self.layout.unflatten(models.clone())
        for name, value in zip(SCALING, (shift, scale), strict=True):
            scaled[name] = value.to(models.dtype).expand_as(scaled[name])
        lead = models.shape[:-1]
        return torch.cat([scaled[n].reshape(*lead, -1) for n in self.layout.names], -1)

    def unscaled(self, x: Tensor) -> Tensor:
        """What the network centres and scales of samples [n, ...]: [n, features]."""
        inputs: Any = self.module.inputs
        found: Tensor = inputs.unscaled(x)
        return found

    @property
    def features(self) -> int:
        """How many numbers a sample has, as far as the network says so by its scaling."""
        return self.layout.sizes[self.layout.names.index(SCALING[0])] if self.scales else 0

    @property
    def scales(self) -> bool:
        """Whether the network centres and scales its samples by numbers that it is told."""
        return all(name in self.layout.names for name in SCALING)

    def generate(self, model: Tensor, count: int, generator: torch.Generator) -> Tensor | None:
        """Samples [count, ...] drawn from a model [d]; None where the network cannot.

        They are as the network sees them: pixels in 0 to 1.
        """
        if not callable(getattr(self.module, "generate", None)):
            return None
        module: Any = copy.deepcopy(self.module).eval()
        module.load_state_dict(self.layout.unflatten(model), strict=False)
        features = torch.Size(module.shape).numel()
        noise = torch.randn(count, features, generator=generator, dtype=self.layout.dtype)
        with torch.no_grad():
            drawn: Tensor = module.generate(noise)
        return drawn


def gives_log_probabilities(task: Any, x: Any) -> bool:
    """Whether a task's network gives one number for each of stored samples, as densities do."""
    try:
        with torch.no_grad():
            output = task.module.eval()(*task.arguments(task.inputs(as_batch(x[:2])).clone()))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return isinstance(output, Tensor) and output.dim() == 1 and len(output) == len(x[:2])
