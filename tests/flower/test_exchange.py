"""Replies that are lost, late or refused, in every phase of a run."""

import itertools
import json
import re

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError
from coterie.flower.wire import decode_packet
from tests.flower.fake import (
    DIGITS,
    IFCA,
    FakeGrid,
    alike,
    an_error,
    deployed,
    make_app,
    metrics_alike,
    silence,
    simulated,
    thirds,
)

KEEPERS = [
    ["local", *DIGITS, "rounds=3"],
    ["ditto", *DIGITS, "rounds=3"],
    ["fpfc", *DIGITS, "lam=0.5", "rounds=3"],
]


def test_a_silent_node_costs_the_timeout_and_no_more(tmp_path, without_third):
    assert all(record["network"] < 10 for record in without_third.records)
    assert [record["answered"] for record in without_third.records] == [4, 4, 4]
    assert without_third.records[0]["silent"] > 0


def test_below_the_quorum_a_round_waits_for_those_who_are_missing(tmp_path):
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


@pytest.mark.parametrize("words", KEEPERS, ids=lambda words: words[0])
def test_a_client_that_is_asked_again_does_not_train_again(tmp_path, words):
    count = itertools.count()

    def every_other_is_lost(reply):
        return None if next(count) % 2 == 0 else reply

    app = make_app(*words)
    grid = FakeGrid(app, thirds(tmp_path))
    # All replies to steps count, also those that bring no model.
    grid.deliver_first = grid.deliver

    def deliver(node, name, reply):
        done = decode_packet(reply.content).header.get("kept")
        if node != 2 or not done or every_other_is_lost(reply):
            grid.deliver_first(node, name, reply)

    grid.deliver = deliver
    run = deployed(tmp_path, words, grid=grid, quorum=1.0, timeout=0.2)
    assert next(count) >= 6
    other = simulated(words)
    alike(run, other)
    assert metrics_alike(run.metrics, other.metrics, 1e-6)


@pytest.mark.parametrize("words", [*KEEPERS, IFCA], ids=lambda words: words[0])
def test_a_late_reply_is_accepted_once(tmp_path, words):
    app = make_app(*words)
    grid = FakeGrid(app, thirds(tmp_path))
    deliver, count = grid.deliver, itertools.count()

    def late(node, name, reply):
        action = decode_packet(reply.content).header
        if node == 2 and "fields" in action and next(count) % 2 == 0:
            reply.metadata.__dict__["_reply_to_message_id"] = name
            grid.late.setdefault(node, {})[name] = reply
        else:
            deliver(node, name, reply)

    grid.deliver = late
    run = deployed(tmp_path, words, grid=grid, quorum=1.0, timeout=0.2)
    other = simulated(words)
    alike(run, other)
    assert [record["answered"] for record in run.records] == [6] * len(run.records)
    assert metrics_alike(run.metrics, other.metrics, 1e-6)


def test_without_a_quorum_it_is_given_up_in_the_end(tmp_path):
    with pytest.raises(CoterieError, match="4 of 6 clients replied, fewer than the quorum"):
        deployed(tmp_path, IFCA, {3: silence}, quorum=0.9, patience=1.0)


def test_what_fails_on_all_nodes_ends_the_run_with_its_reason(tmp_path):
    with pytest.raises(CoterieError, match="all nodes reply with an error: out of memory"):
        deployed(tmp_path, IFCA, dict.fromkeys((1, 2, 3), an_error))


def phase(action, *, trains=None):
    """Whether the reply to a message is silenced: that to such an action."""

    def silenced(header):
        return header["do"] == action and trains in (None, header.get("trains"))

    return silenced


class SilentGrid(FakeGrid):
    """A grid in which some nodes do not reply in some phase of a run."""

    def __init__(self, app, files, nodes, silenced):
        super().__init__(app, files)
        self.nodes, self.silenced = nodes, silenced

    def answer(self, node, message):
        reply = super().answer(node, message)
        lost = node in self.nodes and self.silenced(decode_packet(message.content).header)
        return None if lost else reply

    def deliver(self, node, name, reply):
        if reply is not None:
            super().deliver(node, name, reply)


PHASES = {
    "training": phase("step", trains=True),
    "serving": phase("step", trains=False),
    "scoring": phase("score"),
}


@pytest.mark.parametrize("silenced", PHASES.values(), ids=PHASES)
def test_when_nobody_replies_any_phase_ends_in_a_sentence(tmp_path, silenced):
    words = ["ifca", *DIGITS, "k=2", "start=random", "rounds=1"]
    grid = SilentGrid(make_app(*words), thirds(tmp_path), {1, 2, 3}, silenced)
    with pytest.raises(CoterieError, match=re.escape("0 of 6 clients replied, fewer than the quo")):
        deployed(tmp_path, words, grid=grid, timeout=0.05, patience=0.2)


@pytest.mark.parametrize("silenced", [PHASES["serving"], PHASES["scoring"]], ids=["serve", "score"])
@pytest.mark.parametrize(
    "words", [["ifca", *DIGITS, "k=2", "start=random"], ["ditto", *DIGITS]], ids=lambda w: w[0]
)
def test_a_node_that_is_silent_in_the_evaluation_has_rows_without_scores(tmp_path, words, silenced):
    words = [*words, "rounds=2"]
    grid = SilentGrid(make_app(*words), thirds(tmp_path), {3}, silenced)
    deployed(tmp_path, words, grid=grid, timeout=0.05)
    assert (tmp_path / "run" / "report.html").exists()
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    columns = {name: column for name, column in clients.items() if column is not None}
    assert {len(column) for column in columns.values()} == {6}
    missing = [place for place, loss in enumerate(columns["loss"]) if loss is None]
    asked = words[0] == "ifca" or silenced is PHASES["scoring"]  # Ditto asks nobody to serve
    assert missing == ([4, 5] if asked else [])
