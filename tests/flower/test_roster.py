"""Nodes that come back, or were never asked for."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieWarning, DataError
from coterie.flower import roster
from coterie.flower.mailbox import Pace
from coterie.flower.node import NodeWorker
from coterie.flower.server import run_server
from coterie.flower.wire import Packet, decode_packet, encode_packet
from coterie.networks import Mlp
from tests.flower.fake import (
    IFCA,
    FakeGrid,
    alike,
    deployed,
    make_app,
    simulated,
    thirds,
)

ALWAYS = Pace(poll=0.001, online=0.0)


def test_a_node_that_comes_back_is_recognised(tmp_path):
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    steps = []

    def after_the_first(reply):
        steps.append(reply)
        if len(steps) == 1:  # it is gone after its first reply, and comes back as node 7
            grid.workers[7] = NodeWorker(grid.workers.pop(3).file)
        return reply

    run = deployed(tmp_path, IFCA, {3: after_the_first}, grid=grid, pace=ALWAYS)
    assert len(steps) == 1
    alike(run, simulated(IFCA))


def test_strangers_and_impostors_are_left_out(tmp_path):
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    late = []

    def joined_later(reply):
        if not late:
            late.append(reply)
            grid.workers[8] = NodeWorker(thirds(tmp_path)[0])  # the clients of node 1 again
        return reply

    run = deployed(tmp_path, IFCA, {3: joined_later}, grid=grid, pace=ALWAYS)
    assert any("node 8 is left out: client 0 is already at node 1" in text for text in run.warnings)
    alike(run, simulated(IFCA))


@pytest.fixture
def half_frozen(monkeypatch):
    """Perceptrons whose first layer is frozen at what it was drawn."""
    module = Mlp.module

    def build(self, shape, outputs):
        network = module(self, shape, outputs)
        network[1].requires_grad_(False)
        return network

    monkeypatch.setattr(Mlp, "module", build)


def test_frozen_weights_are_drawn_alike_on_the_server_and_on_every_node(tmp_path, half_frozen):
    run = deployed(tmp_path, IFCA)
    assert run.models.shape[1] == 8 * 10 + 10
    alike(run, simulated(IFCA))


def test_a_node_with_other_frozen_weights_is_refused(tmp_path, half_frozen):
    app = make_app(*IFCA, out=str(tmp_path / "run"), nodes=3, timeout=10.0)
    grid = FakeGrid(app, thirds(tmp_path))

    def other_weights(reply):
        packet = decode_packet(reply.content)
        header = {**packet.header, "frozen": "0" * 16}
        reply.content = encode_packet(Packet(header, packet.tensors))
        return reply

    grid.change = {3: other_weights}
    with pytest.warns(CoterieWarning, match=r"node 3 is left out: .* other frozen weights"):
        run = run_server(grid, app.config(), "1")
    assert {record["answered"] for record in run.records} == {4}
    grid.change = {1: other_weights, 3: other_weights}
    with pytest.raises(DataError, match=r"client .* has other frozen weights than the server's"):
        run_server(grid, make_app(*IFCA, out=str(tmp_path / "other"), nodes=3).config(), "1")


class DeafGrid(FakeGrid):
    """A grid in which a node does not answer when it is asked to enrol."""

    def push_messages(self, messages):
        messages = list(messages)
        names = super().push_messages(messages)
        for name, message in zip(names, messages, strict=True):
            enrols = decode_packet(message.content).header["do"] == "enrol"
            if enrols and message.metadata.dst_node_id == 3:
                self.replies.pop(name, None)
        return names


@pytest.mark.parametrize("needed", [1, 2])
def test_a_node_that_never_enrols_delays_nobody(tmp_path, monkeypatch, needed):
    monkeypatch.setattr(roster, "TELL_SECONDS", 0.1)
    app = make_app(*IFCA)
    grid = DeafGrid(app, thirds(tmp_path))
    run = deployed(tmp_path, IFCA, grid=grid, pace=ALWAYS, nodes=needed, timeout=1000.0)
    assert [record["answered"] for record in run.records] == [4, 4, 4]
    assert sum(record["network"] for record in run.records) < 30
    enrolments = [node for node, m in grid.sent if decode_packet(m.content).header["do"] == "enrol"]
    assert enrolments.count(3) == 1  # it is asked again only after a while


def test_a_node_that_does_not_enrol_is_named_and_asked_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "TELL_SECONDS", 0.1)
    monkeypatch.setattr(roster, "MOST_SECONDS", 0.0)
    app = make_app(*IFCA)
    grid = DeafGrid(app, thirds(tmp_path))
    run = deployed(tmp_path, IFCA, grid=grid, pace=ALWAYS, nodes=2)
    assert any("node 3 is online and has not enrolled" in text for text in run.warnings)


def test_a_run_begins_with_all_who_enrol_in_a_fair_time(tmp_path):
    app = make_app(*IFCA)
    grid, looks = FakeGrid(app, thirds(tmp_path)), []
    pull, late = grid.pull_messages, {}

    def pull_messages(names):
        looks.append(1)
        if len(looks) < 4:  # the third node needs longer to load its data
            late.update({n: grid.replies.pop(n) for n in ["message 2"] if n in grid.replies})
        else:
            grid.replies |= late
            late.clear()
        return pull(names)

    grid.pull_messages = pull_messages
    run = deployed(tmp_path, IFCA, grid=grid, nodes=1)
    assert [record["answered"] for record in run.records] == [6, 6, 6]
