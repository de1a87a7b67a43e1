import json

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from coterie.flower.wire import RAW, TYPES, BadPacket, Packet, packed, unpacked, word
from coterie.tensors.lazy import select_rows


@pytest.mark.parametrize("kind", TYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 0)])
def test_tensors_of_every_kind_go_there_and_back(kind, shape):
    sent = (10 * torch.rand(shape)).to(kind)
    got = unpacked(packed(Packet({"a": [1, "b", None]}, {"t": sent})))
    assert got.words == {"a": [1, "b", None]}
    assert got.tensors["t"].dtype == kind
    assert torch.equal(got.tensors["t"], sent)


def test_views_and_lazy_models_arrive_as_what_they_stand_for():
    rows = torch.arange(6.0).view(3, 2)
    sent = {"turned": rows.T, "picked": select_rows(rows, torch.tensor([2, 0]))}
    got = unpacked(packed(Packet({}, sent))).tensors
    assert torch.equal(got["turned"], rows.T)
    assert torch.equal(got["picked"], rows[[2, 0]])


def content(text="{}", **arrays):
    return RecordDict({"words": ConfigRecord({"json": text}), "arrays": ArrayRecord(dict(arrays))})


def array(dtype="float32", shape=(2,), stype=RAW, data=b"\0" * 8):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (RecordDict({}), "words and arrays, got nothing"),
        (RecordDict({"words": ConfigRecord({"json": "{}"})}), "got words"),
        (RecordDict({"words": ArrayRecord(), "arrays": ArrayRecord()}), "one text"),
        (RecordDict({"words": ConfigRecord({"json": "{}"}), "arrays": ConfigRecord()}), "arrays"),
        (RecordDict({"words": ConfigRecord({"json": 3}), "arrays": ArrayRecord()}), "one text"),
        (content("{"), "cannot be read"),
        (content("[1]"), "a dictionary"),
        (content(x=array(data=b"\0" * 7)), "7 bytes where its shape asks for 8"),
        (content(x=array(data=b"\0" * 800)), "800 bytes"),
        (content(x=array(shape=(2**62, 2**62))), "bytes where"),
        (content(x=array(shape=(-2,))), "impossible shape"),
        (content(x=array(shape=(1,) * 9, data=b"\0" * 4)), "impossible shape"),
        (content(x=array(dtype="object")), "unknown kind"),
        (content(x=array(stype="numpy.ndarray")), "unknown kind"),
        (content(x=array(dtype="bool", data=b"\x07\0")), "neither true nor false"),
    ],
)
def test_what_is_not_a_packet_is_refused(bad, says):
    with pytest.raises(BadPacket, match=says):
        unpacked(bad)


def test_words_are_of_their_kind():
    packet = Packet(json.loads('{"n": 1, "b": true}'))
    assert word(packet, "n", int) == 1
    for name, kind in (("b", int), ("n", str), ("missing", int)):
        with pytest.raises(BadPacket, match=f"`{name}` is missing or of the wrong kind"):
            word(packet, name, kind)
