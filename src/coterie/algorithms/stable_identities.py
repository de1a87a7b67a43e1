"""Stable identities: IFCA sends each client only its own model once nobody changes its cluster.

Section 4.1 of the paper. After `stable` rounds without a change clients no longer choose, so that
k - 1 of k models need not be sent. After `recheck` such rounds all k are sent once more, and if
somebody then chooses another one the count begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.settings import Settings, setting
from coterie.core.validate import at_least

if TYPE_CHECKING:
    from coterie.algorithms.ifca import State


@dataclass(frozen=True, kw_only=True)
class StableIdentities(Settings):
    """Settings of the rounds in which clients are sent only their own model."""

    stable: int = setting(
        0, "rounds of rest after which clients get only their own model; 0: never", at_least(0)
    )
    recheck: int = setting(10, "rounds after which identities are chosen again", at_least(1))

    def identities_rest(self, state: State, ids: Tensor) -> bool:
        """Whether clients `ids` [a] may be sent only the model of the cluster they were last in."""
        rounds = int(state.stable) - self.stable
        known = bool((state.cluster[ids] >= 0).all())
        asked_again = rounds % (self.recheck + 1) == self.recheck
        return self.stable > 0 and rounds >= 0 and known and not asked_again

    def note_identities(self, state: State, ids: Tensor, cluster: Tensor | None) -> State:
        """The state after clients `ids` [a] chose clusters [a]; None: the server is not told."""
        if cluster is None:
            return state
        changed = bool((state.cluster[ids] != cluster).any())
        stable = torch.zeros_like(state.stable) if changed else state.stable + 1
        after = state.cluster.index_put((ids,), cluster)
        return state._replace(cluster=after, stable=stable)
