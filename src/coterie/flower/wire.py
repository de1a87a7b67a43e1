"""What crosses the network: words and tensors, and nothing that could run.

A packet is a dictionary of words (numbers, texts, lists: what JSON has) and named tensors, which
travel as raw bytes with a type and a shape. Whatever arrives is checked before it becomes a tensor:
only known types, as many bytes as the shape says, nothing besides. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.tensors.lazy import dense

if TYPE_CHECKING:
    from flwr.app import RecordDict

RAW = "coterie.raw"  # how the bytes of an array are to be read
TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
MOST_WORDS = 2**24  # characters
MOST_DIMENSIONS = 8


class BadPacket(CoterieError):
    """Something arrived that is not what was agreed on."""


class Packet(NamedTuple):
    """Words and tensors."""

    words: dict[str, Any]
    tensors: dict[str, Tensor] = {}  # noqa: RUF012 - never changed


def packed(packet: Packet) -> RecordDict:
    """A packet as the content of a Flower message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {}
    for name, tensor in packet.tensors.items():
        values = dense(tensor).detach().contiguous().cpu()
        data = values.flatten().view(torch.uint8).numpy().tobytes() if values.numel() else b""
        kind = str(values.dtype).removeprefix("torch.")
        arrays[name] = Array(dtype=kind, shape=tuple(values.shape), stype=RAW, data=data)
    words = ConfigRecord({"json": json.dumps(packet.words)})
    return RecordDict({"words": words, "arrays": ArrayRecord(arrays)})


def unpacked(content: RecordDict) -> Packet:
    """The packet in a Flower message; anything else is refused, in one sentence."""
    from flwr.app import ArrayRecord, ConfigRecord

    if set(content) != {"words", "arrays"}:
        raise BadPacket(f"a message must hold words and arrays, got {named(content)}")
    words, arrays = content["words"], content["arrays"]
    if not isinstance(words, ConfigRecord) or set(words) != {"json"}:
        raise BadPacket("the words of a message must be one text")
    if not isinstance(arrays, ArrayRecord):
        raise BadPacket("the arrays of a message must be arrays")
    text = words["json"]
    if not isinstance(text, str) or len(text) > MOST_WORDS:
        raise BadPacket("the words of a message must be one text that is not too long")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadPacket(f"the words of a message cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BadPacket("the words of a message must be a dictionary")
    return Packet(found, {name: tensor_of(name, array) for name, array in arrays.items()})


def tensor_of(name: str, array: Any) -> Tensor:
    """The tensor behind an array, if it is exactly what it says it is."""
    if array.stype != RAW or array.dtype not in TYPES:
        raise BadPacket(f"{name} is of an unknown kind: {array.stype} of {array.dtype}")
    shape = tuple(array.shape)
    if len(shape) > MOST_DIMENSIONS or any(not isinstance(n, int) or n < 0 for n in shape):
        raise BadPacket(f"{name} has an impossible shape: {shape}")
    kind = TYPES[array.dtype]
    wanted = math.prod(shape) * kind.itemsize
    if len(array.data) != wanted:
        raise BadPacket(f"{name} has {len(array.data)} bytes where its shape asks for {wanted}")
    if not wanted:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
    if kind is torch.bool and bool((flat > 1).any()):
        raise BadPacket(f"{name} holds something that is neither true nor false")
    return flat.view(kind).view(shape)


def word(packet: Packet, name: str, *kinds: type) -> Any:
    """A word of a packet, of one of `kinds`."""
    value = packet.words.get(name)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise BadPacket(f"the word `{name}` is missing or of the wrong kind")
    return value


def tensor(packet: Packet, name: str) -> Tensor:
    """A tensor of a packet."""
    if name not in packet.tensors:
        raise BadPacket(f"the array `{name}` is missing")
    return packet.tensors[name]


def named(things: Any) -> str:
    return ", ".join(sorted(map(str, things))) or "nothing"
