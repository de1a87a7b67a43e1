"""Nodes that are silent, die, come back, or were never asked for."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError, DataError
from coterie.flower import roster
from coterie.flower.node import NodeWorker
from coterie.flower.server import run_server
from coterie.flower.wire import Packet, decode_packet, encode_packet
from coterie.networks import Mlp
from tests.flower.fake import (
    IFCA,
    FakeGrid,
    alike,
    an_error,
    deployed,
    make_app,
    silence,
    simulated,
    thirds,
)


def test_a_silent_node_costs_the_timeout_and_no_more(tmp_path, without_third):
    assert all(record["network"] < 10 for record in without_third.records)
    assert [record["answered"] for record in without_third.records] == [4, 4, 4]
    assert without_third.records[0]["silent"] > 0


def test_below_the_quorum_a_round_waits_for_those_who_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "ONLINE_SECONDS", 0.01)
    lost = []

    def hangs_twice(reply):
        if len(lost) < 2:
            lost.append(reply)
            return None
        return reply

    run = deployed(tmp_path, IFCA, {3: hangs_twice}, quorum=1.0)
    assert len(lost) == 2
    assert [record["answered"] for record in run.records] == [6, 6, 6]
    alike(run, simulated(IFCA))


def test_without_a_quorum_it_is_given_up_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "ONLINE_SECONDS", 0.01)
    with pytest.raises(CoterieError, match="4 of 6 clients replied, fewer than the quorum"):
        deployed(tmp_path, IFCA, {3: silence}, quorum=0.9, patience=5.0)


def test_what_fails_on_all_nodes_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "ONLINE_SECONDS", 0.01)
    with pytest.raises(CoterieError, match="all nodes reply with an error: out of memory"):
        deployed(tmp_path, IFCA, dict.fromkeys((1, 2, 3), an_error))


def test_a_node_that_comes_back_is_recognised(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "ONLINE_SECONDS", 0.0)
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    steps = []

    def after_the_first(reply):
        steps.append(reply)
        if len(steps) == 1:  # it is gone after its first reply, and comes back as node 7
            grid.workers[7] = NodeWorker(grid.workers.pop(3).file)
        return reply

    run = deployed(tmp_path, IFCA, {3: after_the_first}, grid=grid)
    assert len(steps) == 1
    alike(run, simulated(IFCA))


def test_strangers_and_impostors_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "ONLINE_SECONDS", 0.0)
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    late = []

    def joined_later(reply):
        if not late:
            late.append(reply)
            grid.workers[8] = NodeWorker(thirds(tmp_path)[0])  # the clients of node 1 again
        return reply

    run = deployed(tmp_path, IFCA, {3: joined_later}, grid=grid)
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
    with pytest.raises(DataError, match=r"client .* has other frozen weights than the server's"):
        run_server(grid, app.config(), "1")
