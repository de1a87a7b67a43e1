"""Personal models: after the last round clients fine-tune the models that serve them.

J. Xie: Multi-Center Federated Learning to Cluster Clients with non-IID data, thesis, University of
Technology Sydney, 2022. The last step of its Algorithm 4, for every method:

    client i: w_i = the model that serves it
              E epochs of local training of w_i on its own data

and its section 4.3.1, for outliers and for clients that never took part:

    client i: w  = the model with the lowest loss on its data
              w_i = w after E epochs of local training
              use w_i if |w_i - w| > threshold, else w

The thesis gives no threshold. Here it is a multiple of the median distance by which the clients of
the run move in the same E epochs: half of them would have to be outliers to hide one. A model that
was fine-tuned does not leave its client; how far it moved does, one number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.task import Task, TaskMetrics, task_metrics
from coterie.evaluation.client_map import principal_components
from coterie.evaluation.measures import davies_bouldin
from coterie.tensors.lazy import dense
from coterie.vectors.kmeans import compress

Adapt = Callable[..., Tensor]
MOST_NUMBERS = 2**26  # of models that are held at once, to see how far their clusters are apart
MOST_PLACED = 400  # clients whose models are placed in a plane, as in Figure 3.4 of the thesis


class TunedScores(NamedTuple):
    """How well clients are served before and after they fine-tune their models."""

    untuned: Tensor  # [a, s] the task's sums under the model that serves
    tuned: Tensor  # [a, s] the same under the model that it becomes
    moved: Tensor  # [a, 1] the Euclidean distance between the two
    models: Tensor | None = None  # [a, d] what they become, where clients are simulated


@dataclass(frozen=True)
class FineTuning:
    """How clients fine-tune the models that serve them, and who uses what becomes of them."""

    epochs: int  # E
    lr: float
    batch: int = 0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.9
    clip: float = 0.0
    outliers_only: bool = False  # else all clients use the model that they fine-tuned
    distance: float = 3.0  # the threshold, in medians of the distance moved
    training_samples: Callable[[Cohort], Cohort] = lambda cohort: cohort  # those to train on

    def tune(self, cohort: Cohort, model: Tensor) -> Tensor:
        """Each client's row of `model` [m, d] after E epochs on its own data."""
        return self.training_samples(cohort).descend(
            model,
            lr=self.lr,
            epochs=self.epochs,
            batch=self.batch,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            momentum=self.momentum,
            clip=self.clip,
        )

    def after(self, adapt: Adapt | None) -> Adapt:
        """A client step that adapts a model, as a serving has it, if at all, then fine-tunes it."""
        if adapt is None:
            return self.tune
        return lambda cohort, model: self.tune(cohort, adapt(cohort, model=model))

    def score(
        self,
        own: Cohort,
        scored: Cohort,
        model: Tensor,
        adapt: Adapt | None = None,
        with_models: bool = False,
    ) -> TunedScores:
        """Scores before and after: clients train on the samples `own` and are `scored` on others.

        Clients that `adapt` their row of `model` [m, d] do so first.
        """
        before = model if adapt is None else adapt(own, model=model)
        after = dense(self.tune(own, before))
        trained = own.task.layout.trained_size  # running statistics are no distance
        moved = (after - dense(before))[:, :trained].double().norm(dim=1, keepdim=True)
        models = after if with_models else None
        return TunedScores(scored.score(before), scored.score(after), moved, models)

    def threshold(self, moved: Tensor) -> float | None:
        """How far the model of an outlier moved at least, by all distances; None: all use theirs.

        A model that diverged has no distance.

        >>> FineTuning(1, 0.1, outliers_only=True).threshold(torch.tensor([[1.0], [2.0], [9.0]]))
        6.0
        """
        if not self.outliers_only:
            return None
        known = moved[moved.isfinite()]
        return self.distance * float(known.median()) if len(known) else 0.0


class PersonalModels(NamedTuple):
    """What became of the models that clients fine-tuned; each is known to its client alone."""

    serving: Serving  # of the clients that were scored
    summary: TaskMetrics  # of the models in use, fine-tuned or not
    before: TaskMetrics | None = None  # of the same clients, before; None: only sums are told
    moved: Tensor | None = None  # [a] how far each client's model moved
    uses_own: Tensor | None = None  # [a] whether a client uses the model that it fine-tuned
    threshold: float | None = None  # of the distance; None: all use the model that they fine-tuned
    separation: float | None = None  # of the clusters of these models; None: not known
    places: Tensor | None = None  # [a, 2] of these models in a plane, NaN unknown; None: all are

    def metrics(self) -> dict[str, float]:
        """Which share of clients uses its own model, the threshold, how far clusters are apart."""
        if not len(self.serving.ids):
            return {}
        share = 1.0 if self.uses_own is None else float(self.uses_own.double().mean())
        known = {"tuned_distance": self.threshold, "davies_bouldin": self.separation}
        return {"tuned": share} | {n: v for n, v in known.items() if v is not None}


def choose_personal(
    task: Task, serving: Serving, scores: TunedScores, threshold: float | None
) -> PersonalModels:
    """The models that clients use, by how far theirs moved."""
    moved = scores.moved[:, 0]
    uses_own = torch.ones_like(moved, dtype=torch.bool)
    if threshold is not None:
        uses_own = moved.isfinite() & (moved > threshold)
    used = torch.where(uses_own[:, None], scores.tuned, scores.untuned)
    parts = (task_metrics(task, used), task_metrics(task, scores.untuned))
    apart = places = None
    if scores.models is not None:
        apart = davies_bouldin(scores.models, serving.cluster)
        places = place_models(scores.models)
    return PersonalModels(serving, *parts, moved, uses_own, threshold, apart, places)


def place_models(models: Tensor) -> Tensor:
    """The two principal components of models [m, d], [m, 2]; of many, those of some, evenly spaced.

    The others are NaN, and so are all where one is not finite.
    """
    places = torch.full((len(models), 2), torch.nan, dtype=torch.float64)
    some = torch.linspace(0, len(models) - 1, min(MOST_PLACED, len(models))).round().long()
    if len(some) and bool(models[some].isfinite().all()):
        places[some] = principal_components(compress(models[some]))
    return places


def check_tunable(serving: Serving, name: str) -> None:
    """Refuse clients that are not served one model each."""
    if serving.label is not None:
        raise SettingError(f"`finetune` must be 0 for {name}, which serves samples, not clients")
    if serving.mixture is not None:
        raise SettingError(f"`finetune` must be 0 for {name}, which serves mixtures of models")
