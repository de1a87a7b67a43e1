"""Resampling: every round has samples of its own, as the theorems about IFCA assume.

With T rounds the n samples of a client are dealt into 2T disjoint parts of n' = n / 2T (section 5
of the IFCA paper). In round t a client chooses its cluster by one part and descends on another, and
no other round sees either: the models of the round know nothing of these samples, and the choice
nothing of the gradient. It is there for the analysis. In practice it throws away all but n' of the
n samples that each gradient could have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import SettingError
from coterie.core.local_scores import BestModel
from coterie.core.local_training import LocalTraining
from coterie.core.settings import setting
from coterie.core.validate import at_least
from coterie.tensors.lazy import select_rows


@dataclass(frozen=True, kw_only=True)
class Resampling(LocalTraining):
    """Settings of LocalUpdate by clients that choose a model first, maybe on fresh samples."""

    resample: bool = setting(
        False, "fresh samples in every round: one part to choose by, one to descend on", added=True
    )
    resample_rounds: int = setting(
        0,
        "rounds T to which resample deals out samples; 0: those of the run",
        at_least(0),
        added=True,
    )

    @property
    def least_samples(self) -> int:
        """How many samples every client must have: one for each of the 2T parts."""
        return max(1, 2 * self.resample_rounds) if self.resample else 1

    def for_rounds(self, rounds: int) -> Self:
        """The same in a run of so many rounds, to each of which samples must have been dealt."""
        if self.resample and self.resample_rounds == 0:
            return replace(self, resample_rounds=rounds)
        if self.resample:
            self._check_rounds(rounds)
        return self

    def choose_model(self, cohort: Cohort, models: Tensor) -> BestModel:
        """The one of models [k, d] with the lowest loss on the samples to choose by."""
        if not self.resample:
            return cohort.choose(models)
        cluster = self._fresh_part(cohort, 0).choose(models).cluster
        # What the choice found out about the model is of other samples than those to descend on.
        return BestModel(cluster, select_rows(models, cluster))

    def descent_samples(self, cohort: Cohort) -> Cohort:
        """The same clients with the samples to descend on."""
        return self._fresh_part(cohort, 1) if self.resample else cohort

    def _fresh_part(self, cohort: Cohort, which: int) -> Cohort:
        """The same clients with the first or second part of this round's samples."""
        self._check_rounds(cohort.round + 1)
        return cohort.disjoint_part(2 * cohort.round + which, 2 * self.resample_rounds)

    def _check_rounds(self, rounds: int) -> None:
        """Refuse more rounds than samples are dealt out to."""
        if rounds > self.resample_rounds:
            raise SettingError(
                f"`resample_rounds` of {type(self).__name__} must be at least the rounds of the "
                f"run, {rounds}, for later ones have no fresh samples, got {self.resample_rounds}"
            )
