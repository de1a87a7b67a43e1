"""What crosses the network: a header and tensors, and nothing that could run.

A packet has a header (a dictionary of what JSON has: numbers, texts, lists) and named tensors,
which travel as raw bytes with a type and a shape. Whatever arrives is checked before it becomes a
tensor: only known types, as many bytes as the shape says, nothing besides. Nothing is unpickled.

Flower fetches and stores every array by itself, in two requests. So small tensors travel together,
with the header; a large one is an array, which Flower cuts into parts, and which it stores once if
many nodes are sent the same.

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
SMALL = 2**16  # bytes of tensors that travel with the header
MAX_HEADER = 2**24  # characters
MAX_DIMENSIONS = 8
KINDS: dict[type, str] = {dict: "dictionary", list: "list"}  # of what a text of the header may say


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

    arrays: dict[str, Array] = {}
    small: list[tuple[str, str, list[int]]] = []
    together = b""
    for name, tensor in packet.tensors.items():
        values = dense(tensor).detach().contiguous().cpu()
        data = values.flatten().view(torch.uint8).numpy().tobytes() if values.numel() else b""
        kind = str(values.dtype).removeprefix("torch.")
        if len(together) + len(data) <= SMALL:
            small.append((name, kind, list(values.shape)))
            together += data
        else:
            arrays[name] = Array(dtype=kind, shape=tuple(values.shape), stype=RAW_BYTES, data=data)
    texts = {"json": json.dumps(packet.header), "small": json.dumps(small)}
    words = ConfigRecord({**texts, "bytes": together})
    return RecordDict({HEADER: words, TENSORS: ArrayRecord(arrays)})


def decode_packet(content: RecordDict) -> Packet:
    """The packet in a Flower message; anything else is refused, in one sentence."""
    from flwr.app import ArrayRecord, ConfigRecord

    if set(content) != {HEADER, TENSORS}:
        found = ", ".join(sorted(map(str, content))) or "nothing"
        raise BadPacket(f"a message must hold `{HEADER}` and `{TENSORS}`, got {found}")
    record, arrays = content[HEADER], content[TENSORS]
    if not isinstance(record, ConfigRecord) or set(record) != {"json", "small", "bytes"}:
        raise BadPacket("the header of a message must be two texts and bytes")
    if not isinstance(arrays, ArrayRecord):
        raise BadPacket("the tensors of a message must be arrays")
    header = read_words(record["json"], dict)
    tensors = decode_small(read_words(record["small"], list), record["bytes"])
    for name, array in arrays.items():
        if array.stype != RAW_BYTES or name in tensors:
            raise BadPacket(f"{name} is of an unknown type or there twice: {array.stype}")
        tensors[name] = decode_tensor(name, array.dtype, tuple(array.shape), array.data)
    return Packet(header, tensors)


def read_words(text: Any, kind: type) -> Any:
    """What a text of the header says, a dictionary or a list."""
    if not isinstance(text, str) or len(text) > MAX_HEADER:
        raise BadPacket(f"the header of a message must be a text of at most {MAX_HEADER} letters")
    try:
        found = parse_json(text)
    except ValueError as error:
        raise BadPacket(f"the header of a message cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise BadPacket(f"the header of a message must be a {KINDS[kind]}")
    return found


def decode_small(small: list[Any], data: Any) -> dict[str, Tensor]:
    """The tensors that travel with the header: their names, types and shapes, and all bytes."""
    tensors: dict[str, Tensor] = {}
    if not isinstance(data, bytes):
        raise BadPacket("the small tensors of a message must be bytes")
    place = 0
    for each in small:
        if not (isinstance(each, list) and len(each) == 3 and isinstance(each[2], list)):
            raise BadPacket("a small tensor of a message must have a name, a type and a shape")
        name, kind, shape = each[0], each[1], tuple(each[2])
        if not (isinstance(name, str) and isinstance(kind, str)) or name in tensors:
            raise BadPacket("a small tensor of a message must have a name, a type and a shape")
        end = place + tensor_bytes(name, kind, shape)
        tensors[name] = decode_tensor(name, kind, shape, data[place:end])
        place = end
    if place != len(data):
        raise BadPacket(f"the small tensors of a message must have {place} bytes, got {len(data)}")
    return tensors


def tensor_bytes(name: str, kind: str, shape: tuple[Any, ...]) -> int:
    """How many bytes a tensor has; refuse one of another type, or an impossible shape."""
    if kind not in TYPES:
        raise BadPacket(f"{name} is of an unknown type: {kind}")
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    if len(shape) > MAX_DIMENSIONS or not whole:
        raise BadPacket(f"{name} has an impossible shape: {shape}")
    return int(math.prod(shape) * TYPES[kind].itemsize)


def decode_tensor(name: str, kind: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    """The tensor in some bytes, if type, shape and their number agree."""
    expected, dtype = tensor_bytes(name, kind, shape), TYPES[kind]
    if len(data) != expected:
        raise BadPacket(f"{name} must have {expected} bytes for its shape, got {len(data)}")
    if not expected:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if dtype is torch.bool and bool((flat > 1).any()):
        raise BadPacket(f"{name} holds something that is neither true nor false")
    return flat.view(dtype).view(shape)


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
