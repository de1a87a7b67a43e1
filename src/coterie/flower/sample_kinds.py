"""What the samples of a node are like, as it says when it enrols, and samples made up by that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.sample_kinds import PartKind, sample_kinds
from coterie.core.samples import Inputs, Ragged
from coterie.data.federation import Samples
from coterie.flower.wire import TYPES, BadPacket

LENGTHS = (2, 3)  # of sequences that are made up
MAX_INPUTS = 100


def encode_kinds(samples: Samples) -> dict[str, Any]:
    """What samples and targets are like, as JSON takes it."""
    return {
        part: [
            {
                "name": kind.name,
                "shape": list(kind.shape),
                "type": str(kind.dtype).removeprefix("torch."),
                "ragged": kind.ragged,
            }
            for kind in sample_kinds(stored)
        ]
        for part, stored in (("x", samples.x), ("y", samples.y))
    }


def decode_kinds(raw: Any) -> tuple[tuple[PartKind, ...], PartKind]:
    """What the samples are like, input by input, and what the targets; if it can be true."""
    parts = [raw.get(part) for part in ("x", "y")] if isinstance(raw, dict) else [None, None]
    if not all(isinstance(part, list) and 0 < len(part) <= MAX_INPUTS for part in parts):
        raise BadPacket("it must say what its samples and its targets are like")
    inputs, targets = ([decode_kind(each) for each in part or []] for part in parts)
    names = {kind.name for kind in inputs}
    if len(targets) != 1 or len(names) < len(inputs) or (len(inputs) > 1 and "" in names):
        raise BadPacket("it must name every input of its samples, each once")
    return tuple(inputs), targets[0]


def decode_kind(raw: Any) -> PartKind:
    """What one input is like."""
    fields = raw if isinstance(raw, dict) else {}
    name, shape, ragged = fields.get("name"), fields.get("shape"), fields.get("ragged")
    if not (isinstance(name, str) and isinstance(shape, list) and isinstance(ragged, bool)):
        raise BadPacket("it must say what its samples and its targets are like")
    if not all(type(side) is int and side > 0 for side in shape):
        raise BadPacket("it must say which shape its samples have")
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise BadPacket("it must say of which type its samples are")
    return PartKind(name, tuple(shape), TYPES[kind], ragged)


def made_up_samples(inputs: tuple[PartKind, ...], target: PartKind) -> Samples:
    """One client with two samples of no meaning."""
    if [(kind.name, kind.ragged) for kind in inputs] == [("", False)]:
        x: Any = made_up_features(inputs[0])
    else:
        parts = {kind.name: made_up_part(kind) for kind in inputs}
        x = parts[""] if "" in parts else Inputs(parts)
    return Samples(x, made_up_targets(target), torch.tensor([0, 2]))


def made_up_features(kind: PartKind) -> Tensor:
    """Random features, [2, ...]."""
    x = torch.rand(2, *kind.shape, generator=torch.Generator().manual_seed(0))
    return x.to(kind.dtype) if kind.dtype.is_floating_point else (9 * x).to(kind.dtype)


def made_up_part(kind: PartKind) -> Tensor | Ragged:
    """One of several inputs, or sequences: zeros and ones, which every dictionary of words has."""
    sequences = [
        (torch.arange(length) % 2).view(-1, *(1 for _ in kind.shape)).expand(-1, *kind.shape)
        for length in LENGTHS
    ]
    if kind.ragged:
        return Ragged.of(sequences).map(lambda values: values.to(kind.dtype))
    return torch.stack([values[1] for values in sequences]).to(kind.dtype)


def made_up_targets(kind: PartKind) -> Tensor | Ragged:
    """Labels 0 and 1, or equal probabilities of all classes."""
    if kind.ragged or (kind.shape and not kind.dtype.is_floating_point):
        return made_up_part(kind)
    if not kind.shape:
        return torch.arange(2).to(kind.dtype)
    return torch.full((2, *kind.shape), 1 / kind.shape[-1], dtype=kind.dtype)
