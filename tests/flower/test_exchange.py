"""Replies that are lost, late or refused, in every phase of a run."""

import itertools
import json
import re

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import CoterieError
from coterie.flower import punctuality
from coterie.flower.mailbox import Pace
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

ALWAYS = Pace(poll=0.001, online=0.0)
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


@pytest.fixture
def impatient(monkeypatch):
    """A tenth of a second is a fair time."""
    monkeypatch.setattr(punctuality, "FAIR_SECONDS", 0.1)
    monkeypatch.setattr(punctuality, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(punctuality, "AGAIN_SECONDS", 0.1)
    for times in ("FAIR_TIMES", "LONGEST_TIMES", "AGAIN_TIMES"):
        monkeypatch.setattr(punctuality, times, 0.0)
    monkeypatch.setattr(punctuality, "FIRST_TIMES", 0.0)


HUNG = ["ifca", *DIGITS, "k=2", "start=random", "rounds=12", "evaluate=100"]


def test_a_hung_node_is_not_waited_for_until_the_timeout_and_asked_less_often(tmp_path, impatient):
    app = make_app(*HUNG)
    grid = FakeGrid(app, thirds(tmp_path))
    run = deployed(tmp_path, HUNG, {3: silence}, grid=grid, timeout=1000.0)
    assert sum(record["network"] for record in run.records) < 100
    assert all(record["answered"] == 4 for record in run.records)
    reasons = [record["missing"]["4, 5"] for record in run.records]
    assert reasons[:2] == ["late", "late"]
    assert reasons.count("late") <= 4  # of twelve rounds
    assert set(reasons) == {"late", "was late"}
    late = [text for text in run.warnings if "(clients 4, 5) is late with" in text]
    assert len(late) >= 3
    assert "left out of the next 2 exchanges" in late[1]


def test_a_node_whose_answer_comes_late_is_asked_like_any_other_from_then_on(tmp_path, impatient):
    app = make_app(*HUNG)
    grid = FakeGrid(app, thirds(tmp_path))
    deliver, held = grid.deliver, []

    def hangs_for_a_while(node, name, reply):
        if node == 3 and "fields" in decode_packet(reply.content).header and len(held) < 2:
            reply.metadata.__dict__["_reply_to_message_id"] = name
            held.append((name, reply))
        else:
            deliver(node, name, reply)
            if len(held) == 2 and node == 1:  # in a round in which node 3 is left out
                grid.replies |= dict(held)
                held.append(("", None))

    grid.deliver = hangs_for_a_while
    run = deployed(tmp_path, HUNG, grid=grid, timeout=1000.0)
    missing = [record.get("missing") for record in run.records]
    assert missing[:3] == [{"4, 5": "late"}, {"4, 5": "late"}, {"4, 5": "was late"}]
    assert missing[3:] == [None] * 9
    assert [record["answered"] for record in run.records] == [4, 4, 4] + [6] * 9


def test_a_node_that_is_needed_for_the_quorum_is_waited_for_and_asked(tmp_path, impatient):
    count = itertools.count()

    def slow(reply):
        return reply if next(count) % 3 == 2 else None

    run = deployed(tmp_path, IFCA, {3: slow}, quorum=1.0, timeout=0.3)
    assert [record["answered"] for record in run.records] == [6, 6, 6]
    alike(run, simulated(IFCA))


def test_rounds_say_whose_node_is_away(tmp_path):
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))

    def gone(reply):
        grid.offline.add(3)
        return None

    run = deployed(tmp_path, IFCA, {3: gone}, grid=grid, pace=ALWAYS)
    assert [record["missing"] for record in run.records] == [{"4, 5": "away"}] * 3
