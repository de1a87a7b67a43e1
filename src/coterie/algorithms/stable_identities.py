"""Stable identities: IFCA sends each client only its own model once nobody changes its cluster.

Section 4.1 of the paper. After `stable` rounds without a change clients no longer choose, so that
k - 1 of k models need not be sent. After `recheck` such rounds all k are sent once more, and if
somebody then chooses another one the count begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from coterie.algorithms.ifca import IFCA, State


def identities_rest(ifca: IFCA, state: State, ids: Tensor) -> bool:
    """Whether clients `ids` [a] may each be sent only the model of the cluster it was last in."""
    rounds = int(state.stable) - ifca.stable
    known = bool((state.cluster[ids] >= 0).all())
    asked_again = rounds % (ifca.recheck + 1) == ifca.recheck
    return ifca.stable > 0 and rounds >= 0 and known and not asked_again


def note_identities(state: State, ids: Tensor, cluster: Tensor | None) -> State:
    """The state after clients `ids` [a] chose clusters [a]; None: the server is not told."""
    if cluster is None:
        return state
    changed = bool((state.cluster[ids] != cluster).any())
    stable = torch.zeros_like(state.stable) if changed else state.stable + 1
    return state._replace(cluster=state.cluster.index_put((ids,), cluster), stable=stable)
