"""Watching a run: warnings are taken down, and two ways of failing are looked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.core.errors import CoterieWarning

COLLAPSED_ROUNDS = 10  # rounds that one cluster may hold almost everybody before a warning


class Watch:
    """Warns of a collapse into one cluster and of models that have diverged."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.collapsed = 0  # rounds in a row in which one cluster held almost everybody
        self.finite = True  # whether the models were numbers after the last round

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Take down the warnings of coterie that are raised inside, and raise all of them again."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            if issubclass(warning.category, CoterieWarning):
                self.warnings.append(str(warning.message))
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )

    def clusters(self, cluster: Tensor, count: int) -> None:
        """Look at the clusters [m] of all clients after a round, out of so many; -1: not known."""
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

    def models(self, state: Iterable[Tensor]) -> None:
        """Look at the state of an algorithm after a round."""
        floats = (tensor for tensor in state if tensor.is_floating_point())
        self.finite = all(bool(torch.isfinite(tensor).all()) for tensor in floats)
        self._diverged(not self.finite)

    def metrics(self, numbers: Mapping[str, float]) -> None:
        """Look at how a round was judged."""
        self._diverged(not all(map(math.isfinite, numbers.values())))

    def _diverged(self, diverged: bool) -> None:
        if diverged and not any("no longer finite" in text for text in self.warnings):
            self._warn("the models are no longer finite; a smaller lr may help")

    def _warn(self, text: str) -> None:
        warnings.warn(text, CoterieWarning, stacklevel=2)
