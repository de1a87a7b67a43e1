"""The health of a run: its warnings, and checks for two ways in which training fails."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

import torch
from torch import Tensor

from coterie.core.errors import CoterieWarning

LOSSES = ("loss", "train_loss", "validation_loss")
COLLAPSED_ROUNDS = 10  # rounds that one cluster may hold almost everybody before a warning


class HealthMonitor:
    """Records warnings; warns of a collapse into one cluster and of models that have diverged.

    Copies of a run in `lockstep` wait for each other while Python's warning filters are common to
    all. There, only the monitor's own warnings are recorded, and not shown: the grid does the rest.
    """

    def __init__(self, *, lockstep: bool = False) -> None:
        self.lockstep = lockstep
        self.warnings: list[str] = []
        self.collapsed = 0  # rounds in a row in which one cluster held almost everybody
        self.finite = True  # whether the models were finite after the last round, by all checks

    def record_warnings(self) -> AbstractContextManager[None]:
        """Record the warnings of coterie that are raised inside; each is shown at once."""
        return nullcontext() if self.lockstep else recorded_warnings(self._record)

    def check_clusters(self, cluster: Tensor, count: int) -> None:
        """Warn if one of `count` clusters holds almost all clients, by their clusters [m]."""
        known = cluster[cluster >= 0]
        largest = int(torch.bincount(known, minlength=1).max()) / max(1, len(known))
        shared = 1 < count < len(cluster) and len(known) >= 2 * count
        full = shared and largest > 1 - 1 / (2 * count)
        self.collapsed = self.collapsed + 1 if full else 0
        if self.collapsed == COLLAPSED_ROUNDS:
            self._warn(
                f"one of {count} clusters has held {largest:.0%} of the clients for "
                f"{COLLAPSED_ROUNDS} rounds: the clusters have collapsed; try another start policy "
                "or another seed"
            )

    def check_attackers(self, share: float) -> None:
        """Warn if attackers are a majority of a cluster, or as many as the others."""
        if share >= 0.5 and not any("attackers are" in text for text in self.warnings):
            self._warn(
                f"attackers are {share:.0%} of a cluster: no mean inside it can tell who is right; "
                "a screen over all clients may help"
            )

    def warn_of_farthest(self) -> None:
        """Warn of a start in which the worst-served client teaches."""
        self._warn(
            "start=farthest lets the worst-served clients teach, which those with wrong labels "
            "are: take start=greedy where clients may attack"
        )

    def check_models(self, tensors: Iterable[Tensor]) -> None:
        """Warn if tensors of an algorithm's state are no longer finite."""
        floats = (tensor for tensor in tensors if tensor.is_floating_point())
        self.finite = all(bool(torch.isfinite(tensor).all()) for tensor in floats)
        self._check_finite(self.finite)

    def check_metrics(self, numbers: Mapping[str, float], *, infinite: bool = False) -> None:
        """Warn if a metric is no longer finite.

        A loss that is not a number, or with `infinite` too large for one, says that models are not
        finite, also those that no state holds, for clients keep them.
        """
        losses = [numbers[name] for name in LOSSES if name in numbers]
        lost = any(math.isnan(loss) or (infinite and math.isinf(loss)) for loss in losses)
        self.finite = self.finite and not lost
        self._check_finite(all(map(math.isfinite, numbers.values())))

    def _check_finite(self, finite: bool) -> None:
        if not finite and not any("no longer finite" in text for text in self.warnings):
            self._warn("the models are no longer finite; a smaller lr may help")

    def _warn(self, text: str) -> None:
        if self.lockstep:
            self.warnings.append(text)
        else:
            warnings.warn(text, CoterieWarning, stacklevel=2)

    def _record(self, text: str) -> bool:
        self.warnings.append(text)
        return True


@contextmanager
def recorded_warnings(record: Callable[[str], bool]) -> Iterator[None]:
    """Tell `record` of every warning of coterie that is raised inside.

    One of which it says True is shown at once, if the filters outside let it through: so it is seen
    and kept also if an error follows.
    """
    filters, show = warnings.filters, warnings.showwarning

    def on_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        ours = issubclass(category, CoterieWarning)
        if ours and not record(str(message)):
            return
        with warnings.catch_warnings():
            warnings.filters, warnings.showwarning = filters, show
            if ours:
                warnings.warn_explicit(message, category, filename, lineno)
            else:  # has passed the filters already
                show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", CoterieWarning)
        warnings.showwarning = on_warning
        yield
