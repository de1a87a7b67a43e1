"""The outcome of a run, so far or at its end: who is served which model, and how well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.personal import PersonalModels
from coterie.evaluation.quality import Quality, quality_metrics
from coterie.evaluation.scoring import Evaluation

Part = TypeVar("Part")


def once(compute: Callable[[Any], Part]) -> Callable[[Any], Part]:
    """A method that computes its result when it is first called, and returns it ever after.

    Unlike `functools.cached_property` it holds no lock meanwhile, for which copies of a run that
    wait for each other would wait as well.
    """

    @wraps(compute)
    def known(self: Any) -> Part:
        name = f"_{compute.__name__}"
        if name not in vars(self):
            setattr(self, name, compute(self))
        result: Part = getattr(self, name)
        return result

    return known


class Outcome:
    """What one state of an algorithm is worth; each part is computed when it is first asked for."""

    def __init__(self, evaluator: Evaluator, state: Any, own_metrics: Mapping[str, float]) -> None:
        self.evaluator = evaluator
        self.state = state
        self.own_metrics = own_metrics  # those that the algorithm gives itself

    @property
    @once
    def evaluation(self) -> Evaluation:
        """The scores of the clients that answered."""
        return self.evaluator.evaluate(self.state)

    @property
    @once
    def serving(self) -> Serving:
        """Which model serves which client."""
        return self.evaluator.serve(self.state)

    @property
    @once
    def clusters(self) -> Tensor:
        """The cluster of every client, [m]; -1 for one that is not served."""
        return cluster_by_client(self.serving, len(self.evaluator.federation))

    @property
    @once
    def labels(self) -> Tensor | None:
        """Where samples are clustered, the cluster of each, [N]; -1 where it is not known."""
        return self.evaluator.scorer.sample_labels(self.serving)

    @property
    @once
    def models(self) -> Tensor:
        """The models in use, [k, d]."""
        return self.evaluator.scorer.own_models(self.serving)

    @property
    @once
    def personal(self) -> PersonalModels | None:
        """The models that clients fine-tune; None where they do not."""
        return self.evaluator.personalise(self.evaluation, self.serving)

    @property
    @once
    def trained(self) -> Evaluation:
        """The scores of the clients on what they train on."""
        return self.evaluator.trained(self.serving)

    @property
    @once
    def quality(self) -> dict[str, Quality]:
        """The quality in full, by what the names of its metrics begin with."""
        return self.evaluator.quality(self.evaluation, self.trained, self.personal)

    @property
    @once
    def metrics(self) -> dict[str, float]:
        """All numbers of the state; where clients fine-tune, of the models that they then use."""
        numbers = self.evaluator.metrics(self.evaluation, self.clusters)
        if self.personal is not None:
            numbers = self.evaluator.personal_metrics(numbers, self.personal)
        return numbers | dict(self.own_metrics)

    def add_quality(self) -> None:
        """Add to the metrics those of the quality in full, as the end of a run has them."""
        self.metrics.update(quality_metrics(self.quality))

    @property
    @once
    def tables(self) -> dict[str, Any]:
        """The clients one by one, as columns."""
        return self.evaluator.tables(self.serving, self.evaluation, self.trained, self.personal)


def cluster_by_client(serving: Serving, clients: int) -> Tensor:
    """The cluster of every client, [clients]; -1 for one that is not served."""
    cluster = torch.full((clients,), -1)
    cluster[serving.ids] = serving.cluster
    return cluster
