"""Early stopping: which round of a run is kept, and when training ends, by the validation loss.

Where clients hold out a part of their training samples, every evaluation says how high the loss on
these is. The round with the lowest is the best: its state, and what clients kept for themselves
after it, are what the run leaves. Training ends when so many evaluations in a row have brought no
lower one. What the last round left stays beside it in the checkpoint, for a run that is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.state import describe_state, rebuild_state, state_tensors
from coterie.evaluation.scoring import Evaluation


class BestRound(NamedTuple):
    """The best round so far."""

    round: int
    loss: float  # of the validation part
    scored: int  # clients that it is the mean of
    state: Any  # of the algorithm
    own_metrics: dict[str, float]  # those that the algorithm had told by then


class EarlyStopping:
    """Watches the validation loss of a run.

    patience  evaluations without a lower loss after which training ends; 0: it never does
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best: BestRound | None = None
        self.waited = 0  # evaluations since the best
        self.losses = torch.zeros(0, dtype=torch.float64)  # [m] the last known of each client
        self.heard = torch.zeros(0, dtype=torch.bool)  # [m] whether there is one

    @property
    def over(self) -> bool:
        """Whether training has come to its end."""
        return 0 < self.patience <= self.waited

    def watch(
        self,
        round: int,
        validation: Evaluation,
        sizes: Tensor,
        state: Any,
        own_metrics: Mapping[str, float],
    ) -> bool:
        """Take note of an evaluation; whether the round is the best so far.

        Clients that were not scored this time count with their last loss, by their `sizes` [m].
        Where single clients are not known, an evaluation of fewer than before says nothing.
        """
        loss = self._loss(validation, sizes)
        if loss is None:
            return False
        if loss < (math.inf if self.best is None else self.best.loss):
            own = dict(own_metrics)
            self.best = BestRound(round, loss, validation.scored, state, own)
            self.waited = 0
            return True
        self.waited += 1
        return False

    def go_on(self) -> None:
        """Wait anew: a run that came to its end is given more rounds."""
        if self.over:
            self.waited = 0

    def to_checkpoint(
        self, algorithm: Any, rounds: int
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best round of a run of so many rounds, as tensors and notes; nothing without one."""
        best = self.best
        if best is None:
            return {}, {}
        tensors = {f"best.{path}": tensor for path, tensor in state_tensors(best.state).items()}
        tensors |= {"validation.losses": self.losses, "validation.heard": self.heard}
        notes = {
            "state": describe_state(best.state, algorithm),
            "round": best.round,
            "loss": best.loss,
            "scored": best.scored,
            "metrics": best.own_metrics,
            "waited": self.waited,
            "rounds": rounds,
        }
        return tensors, {"best": notes}

    def restore(self, tensors: dict[str, Tensor], notes: Mapping[str, Any], algorithm: Any) -> None:
        """Go on from the tensors of a checkpoint, and what it notes of the best round."""
        state = rebuild_state(notes["state"], tensors, algorithm, "best")
        told = notes["round"], notes["loss"], notes["scored"], state, notes["metrics"]
        self.best, self.waited = BestRound(*told), notes["waited"]
        self.losses, self.heard = tensors["validation.losses"], tensors["validation.heard"]

    def _loss(self, validation: Evaluation, sizes: Tensor) -> float | None:
        """The validation loss over all clients, as far as it is known; None if it is not."""
        ids, summary = validation.serving.ids, validation.summary
        pooled = summary.metrics.get("loss")
        if pooled is None or not len(ids):
            return None
        each = summary.clients.get("loss")
        if each is None:
            return pooled if self.best is None or len(ids) >= self.best.scored else None
        if not len(self.heard):
            self.losses = torch.zeros(len(sizes), dtype=torch.float64)
            self.heard = torch.zeros(len(sizes), dtype=torch.bool)
        self.losses[ids], self.heard[ids] = each.double(), True
        if int(self.heard.sum()) == len(ids):
            return pooled
        known = sizes[self.heard].double()
        return float((self.losses[self.heard] * known).sum() / known.sum())
