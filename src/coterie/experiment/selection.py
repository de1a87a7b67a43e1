"""Choosing between values of a setting by what clients hold out, and k by itself (`k=auto`).

The value with the lowest validation loss is not always a better one: with many groups a little is
gained by chance. Of several k the smallest is taken whose loss is within two standard errors of
the lowest, as trees are pruned (Breiman, Friedman, Olshen and Stone, 1984, who take one). The error
is that of the difference: clients are compared with themselves, each under both values, so that
what makes one client harder than another does not count. That error is much smaller than the one of
a loss alone, and the lowest of six losses is low by chance as well: hence two. Where there are no
groups, k is 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from coterie.core.algorithm import traits_of
from coterie.core.errors import SettingError
from coterie.data.federation import Federation
from coterie.experiment.settings import AutomaticValues, RunSettings

# Automatic values of k that begin twice: in a bad start two groups share a model for good, and one
# more model than there are groups would mend it. Fewer cannot, and more are hardly ever needed.
STARTED_TWICE = (3, 4, 5)
NEAR = 2.0  # standard errors within which a loss is as good as the lowest


class Candidate(NamedTuple):
    """A value of a setting, and the validation loss of the best run with it."""

    value: float | str  # a text where it is no number, as hidden layers are
    loss: float
    losses: Tensor  # [m] of each client, NaN where it holds out nothing


class SelectedValue(NamedTuple):
    """Which candidate is taken, and why."""

    candidate: Candidate
    lowest: Candidate
    errors: list[float]  # the standard error of each candidate's loss less the lowest

    def reason(self, name: str) -> str:
        """Which value of a setting was taken, and why."""
        taken, lowest = self.candidate, self.lowest
        said = (
            f"{name}={value_text(taken.value)} is taken: its validation loss, {taken.loss:.4g}, is "
        )
        if taken.value == lowest.value:
            return f"{said}the lowest"
        least = f"{lowest.loss:.4g} of {name}={value_text(lowest.value)}"
        return f"{said}within two standard errors of the lowest, {least}"

    def result(self, name: str, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """What `result.json` says of it."""
        return {
            "setting": name,
            "values": [each.value for each in candidates],
            "validation_loss": [each.loss for each in candidates],
            "standard_error": self.errors,
            "lowest": self.lowest.value,
            "taken": self.candidate.value,
            "reason": self.reason(name),
        }


def choose_value(
    candidates: Sequence[Candidate], sizes: Tensor, *, smallest: bool = True
) -> SelectedValue:
    """The value with the lowest loss, or the first within two standard errors of that.

    Candidates are in the order of their values, the smallest first.
    `sizes` [m] are how many samples each client holds out.

    >>> import torch
    >>> each = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.2, 1.4, 0.3, 1.3], [0.1, 1.4, 0.3, 1.3]])
    >>> some = [Candidate(k, float(row.mean()), row) for k, row in enumerate(each, 1)]
    >>> choice = choose_value(some, torch.tensor([5, 5, 5, 5]))
    >>> choice.lowest.value, choice.candidate.value
    (3, 1)
    """
    lowest = min(candidates, key=lambda each: each.loss)  # of several the first
    errors = [difference_error(each.losses, lowest.losses, sizes) for each in candidates]
    within = [
        each
        for each, error in zip(candidates, errors, strict=True)
        if each.loss <= lowest.loss + NEAR * error
    ]
    taken = within[0] if smallest else lowest
    return SelectedValue(taken, lowest, errors)


def value_text(value: float | str) -> str:
    """A value as it is written on the command line."""
    return value if isinstance(value, str) else f"{value:g}"


def difference_error(one: Tensor, other: Tensor, sizes: Tensor) -> float:
    """The standard error of the mean difference of two losses [m], clients weighted by `sizes`.

    >>> import torch
    >>> difference_error(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), torch.tensor([5, 5]))
    1.0
    """
    known = one.isfinite() & other.isfinite() & (sizes > 0)
    count = int(known.sum())
    if count < 2:
        return 0.0
    apart, share = (one - other)[known].double(), sizes[known].double()
    share = share / share.sum()
    spread = ((share * (apart - (share * apart).sum())) ** 2).sum()
    return math.sqrt(float(spread) * count / (count - 1))


def check_automatic(
    algorithm: Any, federation: Federation, settings: RunSettings, name: str
) -> None:
    """Refuse to find k by itself where held-out samples do not tell it."""
    reason = why_not_automatic(algorithm, settings, validated=federation.validation is not None)
    if reason:
        raise SettingError(f"`{name}` must be a number {reason}, got auto")


def why_not_automatic(algorithm: Any, settings: RunSettings, *, validated: bool) -> str:
    """Why k cannot be chosen by held-out samples; empty if it can."""
    if traits_of(algorithm).by_sample:
        return "where samples are clustered, for a loss on held-out ones falls with every cluster"
    if not validated:
        return "where clients hold out no samples to choose by (validation=0.15)"
    if settings.attack != "none":
        return "where clients attack"
    if settings.withheld:
        return "where clusters are withheld, for single clients are compared"
    return ""


def values_for(values: Sequence[Any], clients: int) -> Sequence[Any]:
    """The values to try with so many clients: of automatic ones none above half of them.

    >>> values_for(AutomaticValues(), 5), values_for((1, 9), 5)
    ((1, 2, 3), (1, 9))
    """
    if not isinstance(values, AutomaticValues):
        return values
    return tuple(value for value in values if value <= max(1, (clients + 1) // 2))
