"""The settings of a client's local training, which most algorithms share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.schedules import NEED_ROUNDS, SCHEDULES
from coterie.core.settings import Settings, setting
from coterie.core.validate import OneOf, above, at_least, in_range, one_of
from coterie.tensors.optimizers import OPTIMIZERS


def weighting_setting(default: str = "equal", *, added: bool = False) -> Any:
    """The setting by which a method weights clients in its means; several methods have it."""
    rule = one_of("equal", "size")
    return setting(default, "weight of a client in a mean", rule, added=added)


@dataclass(frozen=True, kw_only=True)
class GradientSettings(Settings):
    """Settings of a gradient and of the step along it."""

    lr: float = setting(0.1, "step size gamma", above(0))
    decay: float = setting(1.0, "factor on the step size after every round", above(0))
    batch: int = setting(0, "samples per gradient; 0: all of the client's", at_least(0))
    weight_decay: float = setting(
        0.0, "strength of the pull towards zero, of all but intercepts", at_least(0)
    )
    schedule: str = setting(
        "exponential", "how the step size goes by rounds", OneOf(SCHEDULES), added=True
    )
    schedule_rounds: int = setting(
        0, "rounds of cosine until 0, or of step until the next decay", at_least(0), added=True
    )
    clip: float = setting(0.0, "largest norm of a gradient; 0: any", at_least(0), added=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule in NEED_ROUNDS and self.schedule_rounds < 1:
            raise SettingError(
                f"`schedule_rounds` of {type(self).__name__} must be at least 1 with "
                f"schedule={self.schedule}, got {self.schedule_rounds}"
            )

    def rate_factor(self, round: int) -> float:
        """The step size in a round, counted from 0, as a share of `lr`."""
        return SCHEDULES[self.schedule](round, self)

    def rate(self, round: int) -> float:
        """The step size in a round, counted from 0."""
        return self.lr * self.rate_factor(round)

    def client_gradient(self, cohort: Cohort, model: Tensor) -> Tensor:
        """The gradient [m, d] of each client at its row of `model` [m, d], with these settings."""
        return cohort.gradient(
            model, batch=self.batch, weight_decay=self.weight_decay, clip=self.clip
        )


@dataclass(frozen=True, kw_only=True)
class LocalTraining(GradientSettings):
    """Settings of LocalUpdate; an algorithm that trains on clients takes them in as its own."""

    steps: int = setting(10, "local gradient steps tau", at_least(1))
    epochs: int = setting(0, "local passes over the data in place of steps; 0: steps", at_least(0))
    optimizer: str = setting(
        "sgd",
        "local optimiser as in torch.optim, begun anew in every round",
        one_of(*OPTIMIZERS),
        added=True,
    )
    momentum: float = setting(
        0.9, "share of the last step in the next, with that optimizer", in_range(0, 1), added=True
    )

    def settings_by_name(self) -> dict[str, Any]:
        """These settings by their names, for a method that another one is made of."""
        return {field.name: getattr(self, field.name) for field in fields(LocalTraining)}

    def training_samples(self, cohort: Cohort) -> Cohort:
        """Clients with the samples that they train on: all, unless a method holds some out."""
        return cohort

    def local_update(
        self,
        cohort: Cohort,
        start: Tensor,
        *,
        part: Tensor | None = None,
        pull: float | Tensor = 0.0,
        anchor: Tensor | None = None,
        weights: Tensor | None = None,
        round: int | None = None,
    ) -> Tensor:
        """Each client's model after local training from its row of `start` [m, d] or [m, k, d].

        The step size is that of the cohort's round, or of another `round`. `part`, `pull`,
        `anchor` and `weights` are those of `Cohort.descend`.
        """
        return cohort.descend(
            start,
            lr=self.rate(cohort.round if round is None else round),
            steps=0 if self.epochs else self.steps,
            epochs=self.epochs,
            batch=self.batch,
            weight_decay=self.weight_decay,
            part=part,
            pull=pull,
            anchor=anchor,
            weights=weights,
            optimizer=self.optimizer,
            momentum=self.momentum,
            clip=self.clip,
        )
