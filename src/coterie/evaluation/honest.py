"""Honest clients: where some attack, the numbers of a run are those of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.evaluation.scoring import Evaluation

BESIDE = ("accuracy", "loss")  # what is told of attackers, beside the numbers of the others


@dataclass(frozen=True)
class HonestClients:
    """The clients that train, without those who attack."""

    attackers: Tensor | None = None  # [m] who attacks; None: nobody

    def among(self, ids: Tensor) -> Tensor:
        """Which of the clients `ids` are honest, [a]."""
        if self.attackers is None:
            return torch.ones_like(ids, dtype=torch.bool)
        return ~self.attackers[ids]

    def only(self, serving: Serving) -> Serving:
        """What serves the honest ones."""
        return serving.for_clients(self.among(serving.ids))

    def score(self, serving: Serving, score: Callable[[Serving], Evaluation]) -> Evaluation:
        """The evaluation of the honest ones, with that of those who attack beside it.

        Where clients choose for themselves, single ones are not known, and nobody attacks.
        """
        if self.attackers is None or serving.choose is not None:
            return score(serving)
        attacking = serving.for_clients(~self.among(serving.ids))
        return score(self.only(serving))._replace(attackers=score(attacking))

    def metrics_beside(self, evaluation: Evaluation, prefix: str) -> dict[str, float]:
        """What is told of those who attack."""
        if evaluation.attackers is None:
            return {}
        theirs = evaluation.attackers.summary.metrics
        return {f"attackers_{prefix}{name}": theirs[name] for name in BESIDE if name in theirs}

    def columns(self) -> dict[str, list[bool]]:
        """The column of a table of clients that says who attacks, if anybody may."""
        return {} if self.attackers is None else {"attacker": self.attackers.tolist()}
