"""What a flat parameter vector means: how it is drawn, what it predicts, what a good one is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coterie.core.layout import Layout


class Summary(NamedTuple):
    """Numbers about a model in use."""

    metrics: dict[str, float]  # over all samples, and `_macro`: the plain mean over clients
    clients: dict[str, Tensor]  # name -> [m], of each client


class Tally:
    """Sums that a task makes of clients' samples, as they come: nobody's are kept.

    What is kept of a client is the few numbers that its sums amount to.
    """

    def __init__(self, task: Task, clients: int) -> None:
        self.task, self.clients = task, clients
        self.total: Tensor | None = None  # [s] over all clients so far
        self.numbers: dict[str, Tensor] = {}  # name -> [m]

    def add(self, places: Tensor, scores: Tensor) -> None:
        """Take in the sums [c, s] of the clients that stand at `places` [c]."""
        sums = scores.sum(0)
        self.total = sums if self.total is None else self.total + sums
        for name, values in self.task.numbers(scores).items():
            if name not in self.numbers:
                self.numbers[name] = values.new_empty(self.clients)
            self.numbers[name][places] = values

    def summary(self) -> Summary:
        """What all of it amounts to; a loss has no mean over clients."""
        assert self.total is not None, "nobody was scored"
        pooled = self.task.numbers(self.total[None])
        metrics = {name: float(value) for name, value in pooled.items()}
        for name, values in self.numbers.items():
            if name != "loss":
                metrics[f"{name}_macro"] = float(values.mean())
        return Summary(metrics, self.numbers)


def summary(task: Task, scores: Tensor) -> Summary:
    """What the sums [m, s] of all clients amount to."""
    tally = Tally(task, len(scores))
    tally.add(torch.arange(len(scores)), scores)
    return tally.summary()


class Task(Protocol):
    """A learning problem over one network. `Classification` and `Regression` are such tasks."""

    @property
    def module(self) -> nn.Module:
        """The network; its own weights are never changed."""

    @property
    def losses_at_least_zero(self) -> bool:
        """Whether the loss of a sample is never negative."""

    @property
    def losses_are_squared_errors(self) -> bool:
        """Whether the loss of a sample is the square of its one output less its target."""

    @property
    def layout(self) -> Layout:
        """Where each parameter and buffer of the network lies in the flat vector."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """A random starting model, [d]."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample: outputs [..., n, c] and targets [..., n] give [..., n]."""

    def slopes(self, output: Tensor, y: Tensor) -> Tensor:
        """The derivative of every sample's loss by its outputs, features first.

        Outputs [m, c, n] and targets [m, n] give [m, c, n].
        """

    def score(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Sums over each client's samples, [m, s]; rows outside the mask [m, n] do not count."""

    def numbers(self, scores: Tensor) -> dict[str, Tensor]:
        """What such sums [m, s] amount to: `loss` and others, each [m]."""

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse data that do not fit the network, in one sentence."""

    def inputs(self, x: Tensor) -> Tensor:
        """Features in the type that the network takes."""

    def targets(self, y: Tensor) -> Tensor:
        """Targets in the type that the loss takes."""
