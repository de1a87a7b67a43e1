import importlib.util
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from coterie.flower.wire import RAW_BYTES, TYPES, BadPacket, Packet, decode_packet, encode_packet
from coterie.tensors.lazy import select_rows


@pytest.mark.parametrize("kind", TYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 0)])
def test_tensors_of_every_kind_go_there_and_back(kind, shape):
    sent = (10 * torch.rand(shape)).to(kind)
    got = decode_packet(encode_packet(Packet({"a": [1, "b", None]}, {"t": sent})))
    assert got.header == {"a": [1, "b", None]}
    assert got.tensors["t"].dtype == kind
    assert torch.equal(got.tensors["t"], sent)


def test_views_and_lazy_models_arrive_as_what_they_stand_for():
    rows = torch.arange(6.0).view(3, 2)
    sent = {"transposed": rows.T, "selected": select_rows(rows, torch.tensor([2, 0]))}
    got = decode_packet(encode_packet(Packet({}, sent))).tensors
    assert torch.equal(got["transposed"], rows.T)
    assert torch.equal(got["selected"], rows[[2, 0]])


def test_small_tensors_are_one_part_of_a_message_and_a_large_one_is_another():
    small, large = torch.arange(100.0), torch.arange(20_000.0)
    sent = encode_packet(Packet({}, {"a": small, "large": large, "b": small}))
    assert list(sent["arrays"]) == ["large"]
    got = decode_packet(sent).tensors
    assert all(torch.equal(got[name], each) for name, each in (("a", small), ("large", large)))
    assert torch.equal(got["b"], small)


def words(json="{}", small="[]", bytes=b""):
    return ConfigRecord({"json": json, "small": small, "bytes": bytes})


def content(text="{}", small="[]", bytes=b"", **arrays):
    return RecordDict({"words": words(text, small, bytes), "arrays": ArrayRecord(dict(arrays))})


def array(dtype="float32", shape=(2,), stype=RAW_BYTES, data=b"\0" * 8):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (RecordDict({}), "`words` and `arrays`, got nothing"),
        (RecordDict({"words": ConfigRecord({"json": "{}"})}), "got words"),
        (RecordDict({"words": ArrayRecord(), "arrays": ArrayRecord()}), "two texts and bytes"),
        (RecordDict({"words": ConfigRecord({"json": "{}"}), "arrays": ArrayRecord()}), "two texts"),
        (RecordDict({"words": words(), "arrays": ConfigRecord()}), "arrays"),
        (content(3), "a text of"),
        (content(small="{}"), "a list"),
        (content(small="[3]"), "a name, a type and a shape"),
        (content(small='[["x", "float32"]]'), "a name, a type and a shape"),
        (content(small='[["x", 3, []]]', bytes=b"1234"), "a name, a type and a shape"),
        (content(small='[["x", "int8", []], ["x", "int8", []]]', bytes=b"12"), "a name, a type"),
        (content(small='[["x", "float32", [2]]]', bytes=b"1234567"), "must have 8 bytes"),
        (content(small='[["x", "float32", [1]]]', bytes=b"1234567"), "must have 4 bytes, got 7"),
        (content(small='[["x", "object", [1]]]', bytes=b"1234"), "unknown type"),
        (content(small='[["x", "int8", [-1, -2]]]', bytes=b"12"), "impossible shape"),
        (content(small='[["x", "int8", [true]]]', bytes=b"1"), "impossible shape"),
        (content(small='[["x", "int8", ["1"]]]', bytes=b"1"), "impossible shape"),
        (content(small='[["x", "bool", [1]]]', bytes=b"\x07"), "neither true nor false"),
        (content(small="[]", bytes="text"), "must be bytes"),
        (content(small='[["x", "float32", [2]]]', bytes=b"12345678", x=array()), "there twice"),
        (content("{"), "cannot be read"),
        (content("[1]"), "a dictionary"),
        (content(x=array(data=b"\0" * 7)), "must have 8 bytes for its shape, got 7"),
        (content(x=array(data=b"\0" * 800)), "got 800"),
        (content(x=array(shape=(2**62, 2**62))), "bytes for its shape"),
        (content(x=array(shape=(-2,))), "impossible shape"),
        (content(x=array(shape=(1,) * 9, data=b"\0" * 4)), "impossible shape"),
        (content(x=array(dtype="object")), "unknown type"),
        (content(x=array(stype="numpy.ndarray")), "unknown type"),
        (content(x=array(dtype="bool", data=b"\x07\0")), "neither true nor false"),
    ],
)
def test_what_is_not_a_packet_is_refused(bad, says):
    with pytest.raises(BadPacket, match=says):
        decode_packet(bad)


def test_values_of_a_header_are_of_the_type_that_is_expected():
    packet = Packet(json.loads('{"n": 1, "b": true}'))
    assert packet.get("n", int) == 1
    for name, kind in (("b", int), ("n", str), ("missing", int)):
        with pytest.raises(BadPacket, match=f"`{name}` of a message is missing or of the wrong"):
            packet.get(name, kind)
    with pytest.raises(BadPacket, match="the tensor `x` of a message is missing"):
        packet.tensor("x")


def test_the_light_nodes_of_the_benchmark_speak_the_same_language():
    path = Path(__file__).parents[2] / "benchmarks" / "light_nodes.py"
    spec = importlib.util.spec_from_file_location("light_nodes", path)
    light = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(light)
    tensors = {"ids": torch.arange(3), "all.model": torch.rand(30_000), "size": torch.tensor([7])}
    read = light.arrays_of(encode_packet(Packet({}, tensors)))
    assert {name: array.tolist() for name, array in read.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    node = light.LightNode({"enrolment": {"app": "x"}, "samples": 7}, 2)
    asked = {"do": "step", "of": "fedavg"}
    reply = decode_packet(node.reply(encode_packet(Packet(asked, tensors))))
    assert reply.header["fields"] == sorted(reply.tensors) == ["cluster", "model", "size"]
    assert torch.allclose(reply.tensors["model"], tensors["all.model"][None], atol=1e-3)
    enrolled = decode_packet(node.reply(encode_packet(Packet({"do": "enrol"}))))
    assert enrolled.header["clients"] == ["light-0002"]
    assert node.reply(encode_packet(Packet({"do": "score"}))) is None
