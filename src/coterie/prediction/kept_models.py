"""What a run keeps to predict by: one file, `models.safetensors`, that needs no data of anybody.

    models    [k, d] the models of the groups
    cluster   [m] the group of every client, -1 where nobody but the client knows it
    members   [k] how many clients are in each group
    own       [a, d] models that clients have for themselves, those of the clients `own_ids` [a]
    shares    [m, k] in which clients mix the models, where they do
    frozen.*  weights of the network that are the same in all models
    state.*   where samples are clustered, what the algorithm needs to say where a sample belongs
    memory.*  and what its clients kept for that

Its facts say which network the numbers are the weights of, the names of the clients and the schema
of their rows. No row of anybody is in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.errors import CheckpointError
from coterie.files import write_atomically
from coterie.tensors.digest import content_digest, read_tensors

MODELS = "models.safetensors"  # in the folder of a run
KEPT_FORMAT = "coterie models 1"
MOST_OWN_NUMBERS = 2**26  # of clients' own models, 256 MB; where there are more, they are left out


@dataclass(frozen=True)
class KeptModels:
    """The models of a run, who is served which, and what is known of them as JSON."""

    models: Tensor  # [k, d]
    cluster: Tensor  # [m]
    members: Tensor  # [k] clients
    facts: dict[str, Any]  # see `experiment/kept_run.py`, which writes them
    own: Tensor | None = None  # [a, d]
    own_ids: Tensor | None = None  # [a] whose they are, increasing, also where they are left out
    shares: Tensor | None = None  # [m, k]
    others: dict[str, Tensor] = field(default_factory=dict)  # frozen.*, state.*, memory.*

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients; where they have none, their numbers."""
        given = self.facts["clients"]
        return tuple(given) if given else tuple(map(str, range(len(self.cluster))))

    def under(self, lead: str) -> dict[str, Tensor]:
        """Those of the other tensors whose name begins with `lead`, without it."""
        return {
            name.removeprefix(lead): tensor
            for name, tensor in self.others.items()
            if name.startswith(lead)
        }


def write_models(path: Path, kept: KeptModels) -> None:
    """Write the file of models atomically."""
    named = {
        "models": kept.models,
        "cluster": kept.cluster,
        "members": kept.members,
        "own": kept.own,
        "own_ids": kept.own_ids,
        "shares": kept.shares,
        **kept.others,
    }
    tensors = {n: each.contiguous().clone() for n, each in named.items() if each is not None}
    facts = {"format": KEPT_FORMAT, "facts": json.dumps(kept.facts)}
    facts["digest"] = content_digest(tensors, facts)
    try:
        write_atomically(path, lambda file: safetensors.torch.save_file(tensors, file, facts))
    except SafetensorError as error:
        raise OSError(f"the models {path} cannot be written: {error}") from error


def read_models(path: Path) -> KeptModels:
    """Read a file of models; refuse one that is damaged."""
    try:
        tensors, facts = read_tensors(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the models {path} are damaged: {error}") from error
    if facts.get("format") != KEPT_FORMAT:
        raise CheckpointError(f"{path} does not hold models that this version of coterie reads")
    expected = facts.pop("digest", None)
    if content_digest(tensors, facts) != expected:
        raise CheckpointError(
            f"the models {path} are damaged: their contents do not match their digest"
        )
    own, own_ids, shares = (tensors.pop(name, None) for name in ("own", "own_ids", "shares"))
    models, cluster, members = (tensors.pop(name) for name in ("models", "cluster", "members"))
    known = json.loads(facts["facts"])
    return KeptModels(models, cluster, members, known, own, own_ids, shares, tensors)


def group_shares(kept: KeptModels) -> Tensor:
    """How likely a client that nothing is known of is in each group, [1, k]: by their clients."""
    counts = kept.members.double()
    if not float(counts.sum()):
        counts = torch.ones_like(counts)
    return (counts / counts.sum())[None]
