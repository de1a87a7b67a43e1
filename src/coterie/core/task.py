"""What a flat parameter vector means: how it is drawn, what it predicts, what a good one is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coterie.core.layout import Layout
from coterie.tensors.products import SummedProducts

# NaN of samples that all have one class or target: such a client has no part in the mean.
MAY_MISS = ("auc", "average_precision", "r2")


class TaskMetrics(NamedTuple):
    """How well models serve clients."""

    # Over all samples; `_macro` is the plain mean over clients, `_micro` that by their samples.
    metrics: dict[str, float]
    clients: dict[str, Tensor]  # name -> [m], of each client


class MetricSums:
    """Metrics from the sums that a task makes of clients' samples, added as they come.

    Of a client only its own metrics are kept.
    """

    def __init__(self, task: Task, clients: int) -> None:
        self.task, self.clients = task, clients
        self.total: Tensor | None = None  # [s] over all clients so far
        self.client_metrics: dict[str, Tensor] = {}  # name -> [m]
        self.f1_sums = torch.zeros(2, dtype=torch.float64)  # of samples, and of F1 over samples

    def add(self, places: Tensor, scores: Tensor) -> None:
        """Add the sums [c, s] of the clients at `places` [c]."""
        if not len(places):
            return
        sums = scores.sum(0)
        self.total = sums if self.total is None else self.total + sums
        for name, values in self.task.metrics(scores).items():
            if name not in self.client_metrics:
                self.client_metrics[name] = values.new_empty(self.clients)
            self.client_metrics[name][places] = values
            if name == "f1" and hasattr(self.task, "sample_counts"):
                samples = self.task.sample_counts(scores).cpu().double()
                self.f1_sums += torch.stack([samples.sum(), samples @ values.cpu().double()])

    def finish(self) -> TaskMetrics:
        """The metrics of all that was added; a loss has no mean over clients.

        There are none where nobody was scored.
        """
        if self.total is None:
            return TaskMetrics({}, {})
        means = mean_over_clients(self.client_metrics)
        metrics = summary_metrics(self.task, self.total, means)
        if self.f1_sums[0] > 0:
            metrics["f1_micro"] = float(self.f1_sums[1] / self.f1_sums[0])
        return TaskMetrics(metrics, self.client_metrics)


def mean_over_clients(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean of each metric [m] over clients.

    `MAY_MISS` are not defined of some clients, which are left out; of all, there is no mean.
    """
    means: dict[str, float] = {}
    for name, each in values.items():
        known = each[~each.isnan()] if name in MAY_MISS else each
        if len(known):
            means[name] = float(known.mean())
    return means


def summary_metrics(task: Task, total: Tensor, means: Mapping[str, float]) -> dict[str, float]:
    """The metrics that the sums [s] over all clients make, and `_macro`: `means` over clients."""
    metrics = {name: float(value) for name, value in task.metrics(total[None]).items()}
    metrics = {n: v for n, v in metrics.items() if n not in MAY_MISS or not math.isnan(v)}
    return metrics | {f"{name}_macro": mean for name, mean in means.items() if name != "loss"}


def task_metrics(task: Task, scores: Tensor) -> TaskMetrics:
    """The metrics that the sums [m, s] of all clients make."""
    sums = MetricSums(task, len(scores))
    sums.add(torch.arange(len(scores)), scores)
    return sums.finish()


class Task(Protocol):
    """A learning problem over one network. `Classification` and `Regression` are such tasks."""

    @property
    def module(self) -> nn.Module:
        """The network; its own weights are never changed."""

    @property
    def predicts(self) -> bool:
        """Whether targets are predicted; else they are only looked at to score clusters by."""

    @property
    def losses_at_least_zero(self) -> bool:
        """Whether the loss of a sample is never negative."""

    @property
    def losses_are_squared_errors(self) -> bool:
        """Whether the loss of a sample is the square of its one output less its target."""

    @property
    def side_by_side(self) -> bool:
        """Whether many small models are trained side by side on a CPU, and not one by one."""

    @property
    def layout(self) -> Layout:
        """Where each parameter and buffer of the network lies in the flat vector."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """A random starting model, [d]."""

    def losses(self, output: Tensor, y: Any) -> Tensor:
        """The loss of every sample: outputs [..., n, c] and targets [..., n] give [..., n]."""

    def output_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """The derivative of every sample's loss by its outputs, features first.

        Outputs [m, c, n] and targets [m, n] give [m, c, n].
        """

    def gradient_inputs(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor | None:
        """What `model_gradients` takes of samples [m, n, ...], one each, [m, n, ...].

        It is made once for many steps: of what training does not change. None: there is no shorter
        way to the gradients than to differentiate.
        """

    def model_gradients(
        self, tensors: dict[str, Tensor], inputs: Tensor, y: Tensor, weight: Tensor
    ) -> Sequence[Tensor | SummedProducts]:
        """The derivative of each client's weighted losses by its trained tensors, in their order.

        Clients have tensors [m, ...], inputs made of their samples [m, n, ...] and weights of these
        [m, n]. That by the weights of a layer need not be formed.
        """

    def mix(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """The output [m, n, ...] of a mixture, so that `losses` and `score` are those of it.

        Outputs of k models [k, m, n, ...] are mixed in each client's shares [m, k].
        """

    def score(self, output: Tensor, y: Any, mask: Tensor) -> Tensor:
        """Sums over each client's samples, [m, s]; rows outside the mask [m, n] do not count."""

    def metrics(self, scores: Tensor) -> dict[str, Tensor]:
        """The metrics that such sums [m, s] make: `loss` and others, each [m]."""

    def check_samples(self, x: Any, y: Any) -> None:
        """Refuse data that do not fit the network, in one sentence."""

    def inputs(self, x: Any) -> Any:
        """Features in the type that the network takes."""

    def targets(self, y: Any) -> Any:
        """Targets in the type that the loss takes."""

    def arguments(self, x: Any) -> tuple[Tensor, ...]:
        """What the network is called with for a batch of samples; of one tensor, that tensor."""
