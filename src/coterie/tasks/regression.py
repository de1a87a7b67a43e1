"""Regression: squared error, and errors in the units of the label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import DataError
from coterie.data.tables.labels import AS_THEY_ARE, TargetScale
from coterie.tasks.network import NetworkTask, kinds_text

ROUNDING = 1e-13  # of sums of squares, below which targets are all the same


class Regression(NetworkTask):
    """Predict one real number with a network of one output.

    The loss is (y - prediction)^2, without the half, as in the IFCA paper. `draw` replaces the
    network's own initialisation where an experiment asks for another. `target` is the scale that
    targets have been brought to, as those of a table: losses stay in it, so that a step size suits
    targets of any unit, and measures in the label's units are multiplied by it.

    >>> task = Regression(nn.Linear(3, 1, bias=False))
    >>> task.losses(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0])).tolist()
    [1.0, 4.0]
    """

    losses_at_least_zero = True

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        *,
        scale: float = 1.0,
        padding: str = "lengths",
        draw: Callable[[torch.Generator], Tensor] | None = None,
        target: TargetScale = AS_THEY_ARE,
    ) -> None:
        super().__init__(network, scale=scale, padding=padding)
        self._draw = draw
        self.target = target

    @property
    def losses_are_squared_errors(self) -> bool:  # type: ignore[override]
        """Not if a class that was made from this one has another loss."""
        return type(self).losses is Regression.losses

    def draw(self, generator: torch.Generator) -> Tensor:
        if self._draw is None:
            return super().draw(generator)
        return self._draw(generator).to(self.layout.dtype)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Squared errors of all samples: outputs [..., n, 1], targets [..., n] give [..., n]."""
        return (output.squeeze(-1) - y).square()

    def output_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """Twice the error."""
        return 2 * (output - y[:, None])

    def targets(self, y: Tensor) -> Tensor:
        return y.to(self.layout.dtype)

    def score(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Per client: samples, summed loss, errors and their squares, targets and their squares.

        Outputs [m, n, 1], targets and mask [m, n] give [m, 6].
        """
        weight = mask.double()
        losses, error = self.losses(output, y).double(), (output.squeeze(-1) - y).double()
        found = [weight, losses * weight, error.abs() * weight, error.square() * weight]
        target = y.double() * weight
        return torch.stack([each.sum(1) for each in (*found, target, target * y)], 1)

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """RMSE and MAE in the units of the label, R2, and the loss in those it is learnt in.

        R2 of samples that all have one target is NaN: it is not defined.
        """
        samples, loss, absolute, squares, targets, of_squares = scores.T
        unit = self.target.scale
        spread = of_squares - targets.square() / samples
        spread = torch.where(spread > ROUNDING * of_squares, spread, 0.0)
        r2 = 1 - squares.nan_to_num(nan=torch.inf) / spread
        return {
            "rmse": unit * (squares / samples).sqrt(),
            "mae": unit * absolute / samples,
            "r2": torch.where(spread > 0, r2, torch.nan),
            "loss": loss / samples,
        }

    def constant_output(self, scores: Tensor) -> Tensor:
        """The output [1] that is the mean of the targets of samples with these sums [s]."""
        return (scores[4] / scores[0])[None].to(self.layout.dtype)

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse data that this network cannot learn from."""
        outputs = self.probe_stored(x).shape[1]
        if outputs != 1 or not isinstance(y, Tensor) or y.dim() != 1:
            shape = list(y.shape[1:]) if isinstance(y, Tensor) else kinds_text(y)
            raise DataError(
                f"regression takes a network of one output and one target per sample, got "
                f"{outputs} outputs of {type(self.module).__name__} and targets of shape {shape}"
            )
