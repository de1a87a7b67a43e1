"""What a node says of itself must be possible before it takes part."""

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.enrolment import placeholder_federation, read_enrolment
from coterie.flower.node import Node
from coterie.flower.wire import BadPacket, Packet
from tests.flower.fake import IFCA, make_app, thirds


@pytest.fixture(scope="module")
def enrolment(tmp_path_factory):
    """An app, and what a node of it says."""
    app = make_app(*IFCA)
    node = Node(app, thirds(tmp_path_factory.mktemp("node"))[0])
    return app, node.answer(Packet({"do": "enrol"}))


def test_a_placeholder_looks_like_the_samples_of_the_node(enrolment):
    app, reply = enrolment
    node = read_enrolment(app, reply)
    assert (node.names, node.sizes.tolist()) == (["0", "1"], [16, 16])
    made = placeholder_federation(app, node)
    assert (made.train.x.shape[1:], made.train.x.dtype) == (node.shape, node.types[0])


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"app": "another"}, "another app, or another version"),
        ({"clients": []}, "each once"),
        ({"clients": ["a", "a"]}, "each once"),
        ({"clients": ["a", "b", "c"]}, "how many samples"),
        ({"shape": [0]}, "which shape"),
        ({"types": ["float32"]}, "which shape"),
        ({"types": ["float32", "object"]}, "of which type"),
        ({"cluster": [1]}, "in which true cluster"),
        ({"clients": "a"}, "`clients` of a message"),
    ],
)
def test_an_impossible_enrolment_is_refused(enrolment, header, says):
    app, reply = enrolment
    with pytest.raises(BadPacket, match=says):
        read_enrolment(app, Packet({**reply.header, **header}, reply.tensors))


def test_a_client_without_samples_is_refused(enrolment):
    app, reply = enrolment
    with pytest.raises(BadPacket, match="how many samples"):
        read_enrolment(app, Packet(reply.header, {"sizes": torch.tensor([0, 20])}))
