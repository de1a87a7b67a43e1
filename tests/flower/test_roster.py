"""Nodes that come back, or were never asked for."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.mailbox import Pace
from coterie.flower.node import NodeWorker
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
