"""Checkpoint files: all that a run needs to go on bit for bit, whole or not there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.errors import CheckpointError
from coterie.core.layout import frozen_digest
from coterie.core.sample_kinds import sample_kinds, stored_tensors
from coterie.core.settings import identifying_settings
from coterie.core.task import Task
from coterie.data.federation import Federation, Samples
from coterie.files import write_atomically
from coterie.tensors.digest import content_digest, read_tensors

FORMAT = "coterie checkpoint 1"


class Checkpoint(NamedTuple):
    """The state after a number of rounds."""

    rounds: int  # rounds done
    run: str  # fingerprint of the run it belongs to
    tensors: dict[str, Tensor]
    notes: dict[str, Any]  # what is not a tensor, as JSON


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically; the one before stays until this one is complete."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    facts = {
        "format": FORMAT,
        "run": checkpoint.run,
        "rounds": str(checkpoint.rounds),
        "notes": json.dumps(checkpoint.notes),
    }
    facts["digest"] = content_digest(tensors, facts)
    try:
        write_atomically(path, lambda file: safetensors.torch.save_file(tensors, file, facts))
    except SafetensorError as error:
        raise OSError(f"the checkpoint {path} cannot be written: {error}") from error


def load_checkpoint(path: Path, *runs: str) -> Checkpoint:
    """Read the checkpoint of a run; refuse one that is damaged or belongs to another run.

    A run is known by the first of several fingerprints, and was by the others in earlier versions.
    """
    try:
        tensors, facts = read_tensors(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from error
    if facts.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of coterie")
    expected = facts.pop("digest", None)
    if content_digest(tensors, facts) != expected:
        raise CheckpointError(
            f"the checkpoint {path} is damaged: its contents do not match its digest"
        )
    if facts["run"] not in runs:
        raise CheckpointError(
            f"the checkpoint {path} belongs to another run: other settings, data or participants, "
            "or another network"
        )
    return Checkpoint(int(facts["rounds"]), runs[0], tensors, json.loads(facts["notes"]))


def run_fingerprint(
    algorithm: Any,
    settings: Any,
    task: Task,
    federation: Federation,
    initial: Tensor | None = None,
    sampling: list[Any] | None = None,
    rounds: int | None = None,
) -> str:
    """What a checkpoint must agree on: algorithm, settings, data, network and first models.

    `sampling` tells how participants are drawn, where the settings do not.

    Not the number of rounds: a run may be given more of them. With `rounds`, what checkpoints of
    version 0.1 agreed on, which could not.
    """
    fixed = {n: value for n, value in identifying_settings(settings).items() if n != "rounds"}
    fixed |= {} if rounds is None else {"rounds": rounds}
    what: list[Any] = [
        type(algorithm).__name__,
        identifying_settings(algorithm),
        fixed,
        [task.layout.names, task.layout.shapes],
        [samples_fingerprint(part) for part in (federation.train, federation.test)],
    ]
    held_out = federation.validation
    what += [] if held_out is None else [["validation", samples_fingerprint(held_out)]]
    # Named only where there are any, so that runs of before frozen weights keep their fingerprint.
    frozen = frozen_digest(task.module)
    what += [["frozen", frozen]] if frozen else []
    what += [] if initial is None else [["initial", content_digest({"initial": initial}, {})]]
    what += [] if sampling is None else [["sampling", sampling]]
    return json_digest(what)


def json_digest(content: Any) -> str:
    """The SHA-256 of content as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def data_digest(federation: Federation) -> str:
    """The SHA-256 of all numbers of a federation, and of the names of its clients and features."""
    total = hashlib.sha256(json.dumps([federation.clients, federation.features]).encode())
    for name, part in federation.parts.items():
        for tensor in (part.offsets, *stored_tensors(part.x), *stored_tensors(part.y)):
            total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            if tensor.numel():
                whole = tensor.contiguous().reshape(-1).view(torch.uint8)
                total.update(whole.cpu().numpy().data)
    return total.hexdigest()


def samples_fingerprint(part: Samples | None) -> list[Any]:
    """What tells one part of a federation from another: its sizes and a sample of its numbers."""
    if part is None:
        return []
    some = min(len(part.y), 1000)
    rows = torch.linspace(0, max(0, len(part.y) - 1), some, dtype=torch.float64).long()
    total = hashlib.sha256()
    for tensor in (part.offsets, *stored_tensors(part.x[rows]), *stored_tensors(part.y[rows])):
        total.update(tensor.contiguous().view(torch.uint8).numpy().data)
    if isinstance(part.x, Tensor) and isinstance(part.y, Tensor):
        return [len(part), list(part.x.shape), str(part.x.dtype), total.hexdigest()]
    kinds = [str(kind) for stored in (part.x, part.y) for kind in sample_kinds(stored)]
    lengths = [len(tensor) for stored in (part.x, part.y) for tensor in stored_tensors(stored)]
    return [len(part), lengths, kinds, total.hexdigest()]
