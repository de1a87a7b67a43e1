"""A step is answered once: asked again, a client sends the same answer, bit for bit."""

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.clients import Each
from coterie.core.errors import CoterieError
from coterie.flower.node import Node
from coterie.flower.node_steps import spread
from coterie.flower.wire import Packet, decode_packet
from tests.flower.fake import DIGITS, FakeGrid, deployed, make_app, thirds

KEEPERS = {
    "local": ["local", *DIGITS, "rounds=3", "batch=5"],
    "ditto": ["ditto", *DIGITS, "rounds=3"],
    "fpfc": ["fpfc", *DIGITS, "lam=0.5", "rounds=3"],
    "fedavg": ["fedavg", *DIGITS, "rounds=3", "batch=5"],
    "ifca": ["ifca", *DIGITS, "k=2", "start=random", "rounds=3"],
}


class Recorded:
    """The messages that the first of two nodes got in a run, to be asked again."""

    def __init__(self, folder, words):
        self.app = make_app(*words)
        grid = FakeGrid(self.app, thirds(folder / "recorded", 2))
        deployed(folder, words, grid=grid, nodes=2)
        packets = [decode_packet(m.content) for node, m in grid.sent if node == 1]
        folded = [p for p in packets if p.header["do"] == "step" and p.header["trains"]]
        self.folded = [p for p in folded if p.header["fold"] is not None]
        self.steps = [Packet({**p.header, "fold": None}, p.tensors) for p in folded]
        self.file = thirds(folder / "again", 2)[0]

    def node(self):
        return Node(self.app, self.file)


@pytest.fixture(params=KEEPERS, scope="module")
def recorded(request, tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp(request.param), KEEPERS[request.param])


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def only(packet, places):
    """The message for some of the clients that it is for."""
    tensors = {
        name: value[places] if name in ("ids", "kept") or name.startswith("index.") else value
        for name, value in packet.tensors.items()
    }
    for name in packet.tensors:
        if name.startswith("each.") and f"index.{name[5:]}" not in packet.tensors:
            tensors[name] = packet.tensors[name][places]
    names = [packet.header["names"][place] for place in places]
    return Packet({**packet.header, "names": names}, tensors)


@pytest.mark.parametrize("restarts", [False, True])
def test_asked_again_a_client_sends_the_same_answer(recorded, restarts, tmp_path):
    recorded.file = thirds(tmp_path, 2)[0]
    node, sent = recorded.node(), []
    for packet in recorded.steps:
        sent.append(node.answer(packet).tensors)
        for _ in range(2):
            node = recorded.node() if restarts else node
            assert same(node.answer(packet).tensors, sent[-1])
    once = Node(recorded.app, thirds(tmp_path / "once", 2)[0])
    for packet, before in zip(recorded.steps, sent, strict=True):
        assert same(once.answer(packet).tensors, before)


@pytest.mark.parametrize("restarts", [False, True])
def test_some_of_the_clients_asked_again_send_the_same(recorded, restarts, tmp_path):
    recorded.file = thirds(tmp_path, 2)[0]
    node = recorded.node()
    for packet in recorded.steps:
        whole = node.answer(packet).tensors
        for places in ([1], [0, 2]):
            node = recorded.node() if restarts else node
            part = node.answer(only(packet, places)).tensors
            assert same(part, {name: value[places] for name, value in whole.items()})


def test_clients_asked_one_after_the_other_train_once_each(recorded, tmp_path):
    recorded.file = thirds(tmp_path, 2)[0]
    node = recorded.node()
    once = Node(recorded.app, thirds(tmp_path / "once", 2)[0])
    for packet in recorded.steps:
        whole = once.answer(packet).tensors
        for places in ([1], [0], [0, 1], [0, 1, 2], [2]):
            part = node.answer(only(packet, places)).tensors
            for name, value in part.items():
                torch.testing.assert_close(value, whole[name][places])


def test_sums_are_those_of_the_clients_who_are_asked(recorded, tmp_path):
    recorded.file = thirds(tmp_path, 2)[0]
    node = recorded.node()
    for packet in recorded.folded:
        whole = node.answer(packet).tensors
        assert same(recorded.node().answer(packet).tensors, whole)
        parts = [recorded.node().answer(only(packet, places)).tensors for places in ([1], [0, 2])]
        for name in ("weight", "model"):
            torch.testing.assert_close(sum(part[name] for part in parts), whole[name])


def test_a_step_that_the_run_has_left_behind_is_not_done_again(recorded, tmp_path):
    recorded.file = thirds(tmp_path, 2)[0]
    node = recorded.node()
    first, second = recorded.steps[:2]
    node.answer(first)
    node.answer(second)
    with pytest.raises(CoterieError, match="has gone on"):
        recorded.node().answer(first)


@pytest.mark.parametrize("name", ["local", "ditto", "fpfc"])
def test_a_node_that_lost_its_memory_says_so(name, tmp_path):
    recorded = Recorded(tmp_path, KEEPERS[name])
    recorded.node().answer(recorded.steps[0])
    fresh = Node(recorded.app, thirds(tmp_path / "fresh", 2)[0])
    with pytest.raises(
        CoterieError, match=r"client 0 kept in round 1 .* is not in its node's memory"
    ):
        fresh.answer(recorded.steps[1])


def test_a_download_is_spread_over_clients_that_were_not_sent_it():
    ids, some = torch.tensor([3, 5, 8]), torch.tensor([5])
    own = spread(Each(torch.tensor([[7.0]]), None, some), ids)
    assert own.rows_for(torch.tensor([5])).tolist() == [[7.0]]
    assert own.rows_for(ids).shape == (3, 1)
    shared = spread(Each(torch.tensor([[1.0], [2.0]]), torch.tensor([1]), some), ids)
    assert shared.rows_for(torch.tensor([5])).tolist() == [[2.0]]
