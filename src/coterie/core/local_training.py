"""The settings of a client's local training, which most algorithms share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.settings import Settings, setting
from coterie.core.validate import above, at_least, one_of


def weighting_setting() -> Any:
    """The setting by which a method weights clients in its means; several methods have it."""
    return setting("equal", "weight of a client in a mean", one_of("equal", "size"))


@dataclass(frozen=True, kw_only=True)
class GradientSettings(Settings):
    """Settings of a gradient and of the step along it."""

    lr: float = setting(0.1, "step size gamma", above(0))
    decay: float = setting(1.0, "factor on the step size after every round", above(0))
    batch: int = setting(0, "samples per gradient; 0: all of the client's", at_least(0))
    weight_decay: float = setting(0.0, "strength of the pull towards zero", at_least(0))

    def rate(self, round: int) -> float:
        """The step size in a round, counted from 0."""
        return self.lr * self.decay**round


@dataclass(frozen=True, kw_only=True)
class LocalTraining(GradientSettings):
    """Settings of LocalUpdate; an algorithm that trains on clients takes them in as its own."""

    steps: int = setting(10, "local gradient steps tau", at_least(1))
    epochs: int = setting(0, "local passes over the data in place of steps; 0: steps", at_least(0))

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
        round: int | None = None,
    ) -> Tensor:
        """Each client's model [m, d] after local training from its row of `start` [m, d].

        The step size is that of the cohort's round, or of another `round`. `part`, `pull` and
        `anchor` are those of `Cohort.descend`.
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
        )
