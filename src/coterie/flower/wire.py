"""What crosses the network: a header and tensors, and nothing that could run.

A packet has a header (a dictionary of what JSON has: numbers, texts, lists) and named tensors,
which travel as raw bytes with a type and a shape. Whatever arrives is checked before it becomes a
tensor: only known types, as many bytes as the shape says, nothing besides. Nothing is unpickled.

The arguments of a client step travel as tensors named `all.NAME` (the same for all clients),
`each.NAME` and `index.NAME` (the two parts of an `Each`); what is not a tensor is in the header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.clients import Each
from coterie.core.errors import CoterieError
from coterie.files import parse_json
from coterie.tensors.lazy import dense

if TYPE_CHECKING:
    from flwr.app import RecordDict

HEADER, TENSORS = "words", "arrays"  # the records of a Flower message
RAW_BYTES = "coterie.raw"  # says how the bytes of an array are to be read
TYPES = {
    name: getattr(torch, name)
    for name in (
        *("float32", "float64", "float16", "bfloat16"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
}
MAX_HEADER = 2**24  # characters
MAX_DIMENSIONS = 8


class BadPacket(CoterieError):
    """Something arrived that is not what was agreed on."""


class Packet(NamedTuple):
    """A header and tensors."""

    header: dict[str, Any]
    tensors: dict[str, Tensor] = {}  # noqa: RUF012 - never changed

    def get(self, name: str, *kinds: type) -> Any:
        """A value of the header, of one of `kinds`."""
        value = self.header.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise BadPacket(f"`{name}` of a message is missing or of the wrong type")
        return value

    def tensor(self, name: str) -> Tensor:
        """A tensor by its name."""
        if name not in self.tensors:
            raise BadPacket(f"the tensor `{name}` of a message is missing")
        return self.tensors[name]


def encode_packet(packet: Packet) -> RecordDict:
    """A packet as the content of a Flower message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {}
    for name, tensor in packet.tensors.items():
        values = dense(tensor).detach().contiguous().cpu()
        data = values.flatten().view(torch.uint8).numpy().tobytes() if values.numel() else b""
        kind = str(values.dtype).removeprefix("torch.")
        arrays[name] = Array(dtype=kind, shape=tuple(values.shape), stype=RAW_BYTES, data=data)
    header = ConfigRecord({"json": json.dumps(packet.header)})
    return RecordDict({HEADER: header, TENSORS: ArrayRecord(arrays)})


def decode_packet(content: RecordDict) -> Packet:
    """The packet in a Flower message; anything else is refused, in one sentence."""
    from flwr.app import ArrayRecord, ConfigRecord

    if set(content) != {HEADER, TENSORS}:
        found = ", ".join(sorted(map(str, content))) or "nothing"
        raise BadPacket(f"a message must hold `{HEADER}` and `{TENSORS}`, got {found}")
    record, arrays = content[HEADER], content[TENSORS]
    if not isinstance(record, ConfigRecord) or set(record) != {"json"}:
        raise BadPacket("the header of a message must be one text")
    if not isinstance(arrays, ArrayRecord):
        raise BadPacket("the tensors of a message must be arrays")
    text = record["json"]
    if not isinstance(text, str) or len(text) > MAX_HEADER:
        raise BadPacket(f"the header of a message must be a text of at most {MAX_HEADER} letters")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise BadPacket(f"the header of a message cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise BadPacket("the header of a message must be a dictionary")
    return Packet(header, {name: decode_tensor(name, array) for name, array in arrays.items()})


def decode_tensor(name: str, array: Any) -> Tensor:
    """The tensor in an array, if type, shape and number of bytes agree."""
    if array.stype != RAW_BYTES or array.dtype not in TYPES:
        raise BadPacket(f"{name} is of an unknown type: {array.stype} of {array.dtype}")
    shape = tuple(array.shape)
    if len(shape) > MAX_DIMENSIONS or any(not isinstance(n, int) or n < 0 for n in shape):
        raise BadPacket(f"{name} has an impossible shape: {shape}")
    kind = TYPES[array.dtype]
    expected = math.prod(shape) * kind.itemsize
    if len(array.data) != expected:
        raise BadPacket(f"{name} must have {expected} bytes for its shape, got {len(array.data)}")
    if not expected:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
    if kind is torch.bool and bool((flat > 1).any()):
        raise BadPacket(f"{name} holds something that is neither true nor false")
    return flat.view(kind).view(shape)


def encode_arguments(
    arguments: Mapping[str, Any], ids: Tensor, *, whole: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of a client step for clients `ids`: those for the header, and tensors.

    Of the models that clients share, only those that some of `ids` receive are sent, unless they
    are to be `whole`: whoever folds must know which cluster is which.
    """
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, Each):
            part = value.for_clients(ids)
            tensors[f"each.{name}"] = part.rows
            if part.index is not None and whole:
                tensors[f"index.{name}"] = part.index
            elif part.index is not None:
                used, index = part.index.unique(return_inverse=True)
                tensors[f"each.{name}"] = part.rows[used]
                tensors[f"index.{name}"] = index
        elif isinstance(value, Tensor):
            tensors[f"all.{name}"] = value
        else:
            plain[name] = value
    return plain, tensors


def decode_arguments(packet: Packet, ids: Tensor) -> dict[str, Any]:
    """The arguments of a client step that a packet holds for clients `ids`."""
    found: dict[str, Any] = dict(packet.get("plain", dict))
    for name, value in packet.tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "all":
            found[rest] = value
        elif kind == "each":
            found[rest] = Each(value, packet.tensors.get(f"index.{rest}"), ids)
    return found
