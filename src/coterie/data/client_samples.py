"""Samples as a user has them, client by client: what they are, and how they are stored.

A client is a pair of samples and targets. Samples are an array, a list of sequences of their own
lengths, or several inputs (a tuple, or a dictionary with their names); targets an array or a list
of sequences, or None where there are none. What is a list of sequences with some client is one with
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import DataError
from coterie.core.sample_kinds import sample_kinds
from coterie.core.samples import Inputs, Ragged, Stored

SAMPLES, TARGETS = "samples", "targets"  # what the parts of a client are called
INPUT = "input "  # and each of several inputs, before its name
Parts = dict[str, Tensor | Ragged]  # of one client; the last are its targets, if it has any


def read_clients(clients: Iterable[Any]) -> list[Parts]:
    """The parts of every client; refuse what no model could learn from."""
    found = [read_client(i, client) for i, client in enumerate(clients)]
    if not found:
        raise DataError("a federation needs at least one client, got none")
    return found


def read_held_out(clients: Sequence[Any], training: Sequence[Parts]) -> list[Parts]:
    """The parts of samples that clients hold out of their training, who may have none.

    These are told by None, or by arrays of no length.
    """
    if len(clients) != len(training):
        raise DataError(
            f"{len(training)} clients train but {len(clients)} have a validation part: give each "
            "client its own, or None"
        )
    return [
        {name: part[:0] for name, part in own.items()}
        if is_without_samples(client)
        else read_client(i, client)
        for i, (client, own) in enumerate(zip(clients, training, strict=True))
    ]


def is_without_samples(client: Any) -> bool:
    """Whether a client has no samples: None, or a pair of which the samples have no length."""
    if client is None:
        return True
    x = client[0] if isinstance(client, tuple | list) and len(client) == 2 else client
    return not isinstance(x, dict) and hasattr(x, "__len__") and len(x) == 0


def sequence_parts(*groups: Iterable[Parts]) -> set[str]:
    """The parts that are sequences of their own lengths with some client."""
    every = chain.from_iterable(groups)
    return {name for parts in every for name, part in parts.items() if isinstance(part, Ragged)}


def have_targets(clients: Sequence[Parts]) -> bool:
    """Whether clients have targets; refuse that some have and others do not."""
    having = [TARGETS in parts for parts in clients]
    if any(having) and not all(having):
        raise DataError(
            "all clients must have targets, or none: "
            f"client {having.index(False)} has none, client {having.index(True)} has some"
        )
    return all(having)


def store_clients(clients: Sequence[Parts], sequences: set[str]) -> tuple[Stored, Stored, Tensor]:
    """All samples, all targets, and the sizes of the clients, [m].

    The parts of the names `sequences` are stored as such. Zeros stand for targets where there are
    none.
    """
    labelled = have_targets(clients)
    names, stored = list(clients[0]), {}
    for i, parts in enumerate(clients):
        if list(parts) != names:
            raise DataError(
                f"all clients must have the same inputs: client 0 has {input_names(names)}, "
                f"client {i} has {input_names(parts)}"
            )
    for name in names:
        parts_of_all = [parts[name] for parts in clients]
        if name in sequences:
            parts_of_all = [as_ragged(part) for part in parts_of_all]
        check_one_kind(name, parts_of_all)
        stored[name] = join_parts(parts_of_all)
    sizes = torch.tensor([len(parts[names[0]]) for parts in clients])
    targets = stored.pop(TARGETS) if labelled else torch.zeros(int(sizes.sum()))
    inputs = {name.removeprefix(INPUT): part for name, part in stored.items()}
    x = stored[SAMPLES] if SAMPLES in stored else Inputs(inputs)
    return x, targets, sizes


def input_names(parts: Iterable[str]) -> str:
    """The names of a client's inputs, as a sentence has them."""
    names = [name.removeprefix(INPUT) for name in parts if name.startswith(INPUT)]
    return ", ".join(names) or "one without a name"


def check_one_kind(name: str, parts: Sequence[Tensor | Ragged]) -> None:
    """Refuse a part that is of another shape or type with some client."""
    kinds = [sample_kinds(part)[0] for part in parts]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise DataError(
                f"all clients must have {name} of one shape and type: client 0 has "
                f"{list(kinds[0].shape)} {kinds[0].dtype}, client {i} has {list(kind.shape)} "
                f"{kind.dtype}"
            )


def join_parts(parts: Sequence[Any]) -> Tensor | Ragged:
    """The part of all clients, one client after another."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    lengths = torch.cat([part.lengths for part in parts])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Ragged(torch.cat([part.values for part in parts]), offsets)


def as_ragged(part: Tensor | Ragged) -> Ragged:
    """Sequences that happen to be of one length, [n, L, ...], as sequences of their own lengths."""
    if isinstance(part, Ragged):
        return part
    if part.dim() < 2:
        raise DataError("some clients have a sequence per sample where others have one number")
    offsets = torch.arange(len(part) + 1) * part.shape[1]
    return Ragged(part.flatten(0, 1), offsets)


def read_client(i: int, client: Any) -> Parts:
    """One client's parts; refuse what no model could learn from."""
    try:
        x, y = client
    except (TypeError, ValueError):
        raise DataError(f"client {i} must be a pair of samples and targets") from None
    try:
        inputs = named_inputs(x)
        parts = {name: read_part(part) for name, part in inputs.items()}
        if y is not None:
            parts[TARGETS] = read_part(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"client {i}: not an array of numbers ({error})") from error
    check_sizes(i, parts)
    for name, part in parts.items():
        values = part.values if isinstance(part, Ragged) else part
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            what = "features" if name == SAMPLES else name
            raise DataError(f"client {i} has NaN or infinite values in its {what}")
        if isinstance(part, Ragged) and int(part.lengths.min()) == 0:
            raise DataError(f"client {i} has an empty sequence in its {name}")
    return parts


def check_sizes(i: int, parts: Parts) -> None:
    """Refuse parts that do not have a value for each of a client's samples, and no samples."""
    last = next(reversed(parts.values()), torch.tensor(0))  # the targets, if there are any
    count = len(last) if is_list(last) else -1
    samples, fewest = parts.get(SAMPLES), 2 if TARGETS in parts else 1
    fits = len(parts) >= fewest and all(is_list(p) and len(p) == count for p in parts.values())
    if not fits or (isinstance(samples, Tensor) and samples.dim() < 2):
        shapes = [
            f"{len(part)} sequences" if isinstance(part, Ragged) else str(list(part.shape))
            for part in parts.values()
        ]
        if TARGETS not in parts:
            found = ", ".join(shapes) or "none"
            raise DataError(f"client {i} must have samples [n, ...], got shapes {found}")
        raise DataError(
            f"client {i} must have samples [n, ...] and n targets, got shapes "
            f"{', '.join(shapes[:-1]) or 'none'} and {shapes[-1]}"
        )
    if count == 0:
        raise DataError(f"client {i} has no samples")


def is_list(part: Tensor | Ragged) -> bool:
    """Whether a part has a value for each sample, rather than being one number."""
    return isinstance(part, Ragged) or part.dim() > 0


def named_inputs(x: Any) -> dict[str, Any]:
    """A client's samples, or its several inputs by name; those of a tuple are numbered."""
    if isinstance(x, dict):
        return {f"{INPUT}{name}": part for name, part in x.items()}
    if isinstance(x, tuple) and all(isinstance(p, np.ndarray | Tensor | Ragged | list) for p in x):
        return {f"{INPUT}{number}": part for number, part in enumerate(x)}
    return {SAMPLES: x}


def read_part(values: Any) -> Tensor | Ragged:
    """An array as a tensor, sequences of several lengths as `Ragged`."""
    if isinstance(values, Ragged):
        return values
    if isinstance(values, np.ndarray) and values.dtype == object:
        values = list(values)
    if isinstance(values, list | tuple) and is_uneven(values):
        return Ragged.of([as_tensor(sequence) for sequence in values])
    return as_tensor(values)


def is_uneven(values: Sequence[Any]) -> bool:
    """Whether these are sequences of several lengths."""
    sized = [hasattr(value, "__len__") and not isinstance(value, str) for value in values]
    if not all(sized) or any(isinstance(v, Tensor | np.ndarray) and v.ndim == 0 for v in values):
        return False
    return len({len(value) for value in values}) > 1


def as_tensor(values: Any) -> Tensor:
    """Values as a tensor that shares their memory where it can."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # PyTorch has few operations for large unsigned types
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)
