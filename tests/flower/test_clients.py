"""The same rounds over a network as in a simulation, whatever nodes do. The grid is in-process."""

import functools
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, Error, Message

from coterie.core.errors import CheckpointError, CoterieError, CoterieWarning
from coterie.experiment.plan import make_plan
from coterie.flower import roster
from coterie.flower.node import Node, NodeWorker
from coterie.flower.server import run_server
from coterie.flower.wire import BadPacket, Packet, packed, unpacked
from tests.flower.fake import FakeGrid, app_of, thirds

DIGITS = ["rotated-digits", "clients=6", "samples=20", "hidden=8", "steps=2"]
IFCA = ["ifca", *DIGITS, "k=2", "start=random", "rounds=3"]


def simulated(words):
    plan = make_plan(words)
    run = plan.run(plan.config())
    run.complete()
    return run


def deployed(tmp_path, words, change=None, grid=None, attempt="1", **settings):
    """A run over three nodes, node i with `change[i]` on its replies to steps."""
    app = app_of(*words, out=str(tmp_path / "run"), **{"nodes": 3, "timeout": 0.2, **settings})
    grid = grid or FakeGrid(app, thirds(tmp_path))
    grid.config = app.config()
    grid.change = {node: only_steps(each) for node, each in (change or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        return run_server(grid, app.config(), attempt)


def only_steps(change):
    """The change, on replies that bring models only: a node must enrol before it can misbehave."""

    def changed(reply):
        assert not reply.has_error(), reply.error
        tensors = unpacked(reply.content).tensors
        trained = any(value.is_floating_point() for value in tensors.values())
        return change(reply) if trained and "scores" not in tensors else reply

    return changed


def alike(one, other):
    for name, value in one.state._asdict().items():
        torch.testing.assert_close(value, getattr(other.state, name), rtol=1e-6, atol=1e-6)
    assert torch.equal(one.clusters, other.clusters)


@pytest.mark.parametrize(
    "words",
    [
        IFCA,
        ["ifca", *DIGITS, "k=2", "start=random", "rounds=2", "stable=1", "lost=0.3"],
        ["fesem", *DIGITS, "k=2", "rounds=2", "warm_rounds=1", "fraction=0.5"],
        ["fpfc", *DIGITS, "lam=0.5", "rounds=3", "fraction=0.5"],
        ["fpfc", *DIGITS, "path_rounds=1", "lambdas=2", "rounds=1"],
        ["k-fed", "gaussian-clusters"],
        ["cfl", *DIGITS, "rounds=3", "wait=1", "batch=4"],
        ["local", *DIGITS, "rounds=2", "fraction=0.5"],
        ["ditto", *DIGITS, "rounds=2"],
        ["oracle", *DIGITS, "rounds=2"],
        ["ifca", *DIGITS, "k=2", "share=frozen", "trunk_rounds=1", "start=random", "rounds=1"],
    ],
    ids=lambda words: " ".join(words[:1] + words[6:9]),
)
def test_a_run_over_a_network_is_the_simulated_one(tmp_path, words):
    one, other = deployed(tmp_path, words), simulated(words)
    alike(one, other)
    assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
    assert one.bytes.table() == other.bytes.table()
    assert (tmp_path / "run" / "report.html").exists()
    record = one.records[-1]
    assert (record["refused"], record["silent"]) == (0, 0)


def test_one_message_to_each_node_in_a_round(tmp_path):
    words = [*IFCA[:-1], "rounds=4", "evaluate=4"]
    app = app_of(*words, out=str(tmp_path / "run"), nodes=3)
    grid = FakeGrid(app, thirds(tmp_path))
    run_server(grid, app.config(), "1")
    sent = [unpacked(message.content).words for _, message in grid.sent]
    rounds = [words["round"] for words in sent if words["do"] == "step" and words["trains"]]
    assert sorted(rounds) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


# What nodes must not be able to do


def edited(reply, edit):
    """A reply with other words or tensors."""
    packet = unpacked(reply.content)
    words, tensors = dict(packet.words), dict(packet.tensors)
    edit(words, tensors)
    reply.content = packed(Packet(words, tensors))
    return reply


def first_float(tensors):
    return next(name for name, value in tensors.items() if value.is_floating_point())


def wrong_shape(words, tensors):
    name = first_float(tensors)
    tensors[name] = tensors[name][:, :-1]


def wrong_type(words, tensors):
    name = first_float(tensors)
    tensors[name] = tensors[name].double()


def other_clients(words, tensors):
    for name, value in tensors.items():
        tensors[name] = torch.cat([value, value])


def not_a_number(words, tensors):
    tensors[first_float(tensors)][0, 0] = float("nan")


def too_large(words, tensors):
    name = first_float(tensors)
    tensors[name] = 100 * tensors[name]


def unknown_cluster(words, tensors):
    tensors["cluster"] = tensors["cluster"] + 2


def negative_cluster(words, tensors):
    tensors["cluster"] = tensors["cluster"] - 2


def more_samples(words, tensors):
    tensors["size"] = 1000 * tensors["size"]


def extra_field(words, tensors):
    tensors["surprise"] = torch.zeros(2)


def declared_extra_field(words, tensors):
    tensors["surprise"] = torch.zeros(2)
    words["fields"].append("surprise")


def missing_field(words, tensors):
    del tensors[first_float(tensors)]


def extra_words(words, tensors):
    words["surprise"] = 1


def truncated(reply):
    record = reply.content["arrays"]
    name = next(name for name, array in record.items() if array.dtype == "float32")
    record[name].data = record[name].data[:-4]
    return reply


def another_record(reply):
    reply.content["surprise"] = ArrayRecord()
    return reply


def pickled(reply):
    record = reply.content["arrays"]
    name = next(iter(record))
    record[name].stype = "numpy.ndarray"
    return reply


def an_error(reply):
    return Message(Error(code=1, reason="out of memory"), reply_to=message_of(reply))


def message_of(reply):
    reply.metadata.__dict__["_message_id"] = "any"
    return reply


def silence(reply):
    return None


BAD = [
    *(
        functools.partial(edited, edit=edit)
        for edit in (
            wrong_shape,
            wrong_type,
            other_clients,
            not_a_number,
            too_large,
            unknown_cluster,
            negative_cluster,
            more_samples,
            extra_field,
            declared_extra_field,
            missing_field,
            extra_words,
        )
    ),
    truncated,
    another_record,
    pickled,
    an_error,
]


@pytest.fixture(scope="module")
def without_third(tmp_path_factory):
    """The run in which the third node never replies to a step."""
    return deployed(tmp_path_factory.mktemp("silent"), IFCA, {3: silence})


@pytest.mark.parametrize(
    "bad",
    BAD,
    ids=lambda bad: bad.keywords["edit"].__name__ if hasattr(bad, "func") else bad.__name__,
)
def test_a_malformed_reply_enters_no_model_and_is_named(tmp_path, bad, without_third):
    run = deployed(tmp_path, IFCA, {3: bad})
    alike(run, without_third)
    said = " ".join(run.warnings)
    assert "refused" in said or "replied with an error: out of memory" in said
    assert "node 3" in said or "client 4" in said
    assert [record["answered"] for record in run.records] == [4, 4, 4]
    refused = sum(record["refused"] for record in run.records)
    silent = sum(record["silent"] for record in run.records)
    assert refused + silent >= 6
    assert "refused" in (tmp_path / "run" / "report.html").read_text() or bad is an_error


def test_a_large_reply_is_usual_where_all_are_large(tmp_path):
    large = functools.partial(edited, edit=too_large)
    run = deployed(tmp_path, ["fedavg", *DIGITS, "rounds=1"], {1: large, 2: large, 3: large})
    assert run.records[0]["refused"] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"do": "run"}, "not asked to"),
        ({"step": "__init__"}, "no client step"),
        ({"step": "init"}, "no client step"),
        ({"step": "train.__self__"}, "no client step"),
        ({"of": "os"}, "no algorithm"),
        ({"of": "local"}, "no algorithm"),
        ({"settings": {}}, "other settings"),
        ({"names": ["0", "5"]}, "not here"),
        ({"run": "../../etc"}, "letters and digits"),
        ({"address": [[1]]}, "numbers and texts"),
        ({"round": True}, "`round`"),
    ],
)
def test_a_node_does_nothing_but_client_steps(tmp_path, words, says):
    app = app_of(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    seen = []
    answer = grid.answer
    grid.answer = lambda node, message: seen.append(message) or answer(node, message)
    run_server(grid, app_of(*IFCA, out=str(tmp_path / "run"), nodes=3).config(), "1")
    packets = [unpacked(message.content) for message in seen]
    packet = next(each for each in packets if each.words["do"] == "step")
    node = Node(app, thirds(tmp_path)[0])
    with pytest.raises(BadPacket, match=says):
        node.answer(Packet({**packet.words, **words}, packet.tensors))


# Faults


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
    app = app_of(*IFCA)
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
    app = app_of(*IFCA)
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


# After the server has died


class Died(Exception):
    """The end of a server."""


@pytest.mark.parametrize("checkpoint", [1, 2])
@pytest.mark.parametrize(
    "words",
    [IFCA, ["fpfc", *DIGITS, "lam=0.5", "fraction=0.5"], ["local", *DIGITS]],
    ids=lambda words: words[0],
)
def test_a_run_goes_on_where_its_server_died(tmp_path, words, checkpoint):
    words = [*[word for word in words if "rounds=" not in word], "rounds=5"]
    words.append(f"checkpoint={checkpoint}")
    app = app_of(*words)
    grid = FakeGrid(app, thirds(tmp_path))
    push = grid.push_messages

    def die_in_the_fourth_round(messages):
        names = push(messages)  # the nodes do their work, but nobody is there to hear of it
        if any(unpacked(m.content).words.get("round") == 3 for m in messages):
            raise Died
        return names

    grid.push_messages = die_in_the_fourth_round
    with pytest.raises(Died):
        deployed(tmp_path, words, grid=grid)
    grid.push_messages = push
    run = deployed(tmp_path, words, grid=grid, attempt="2", resume=True)
    assert run.rounds == 5
    alike(run, simulated(words))
    with pytest.raises(CoterieError, match="already holds a run; resume=true"):
        deployed(tmp_path, words, grid=grid, attempt="3")
    again = deployed(tmp_path, words, grid=grid, attempt="4", resume=True)
    alike(again, run)


def test_a_run_with_other_settings_is_not_resumed(tmp_path):
    deployed(tmp_path, IFCA)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        deployed(tmp_path, [*IFCA, "lr=0.2"], resume=True)


def test_nodes_keep_the_memory_of_two_runs(tmp_path):
    for number in range(4):
        home = tmp_path / f"{number}"
        home.mkdir()
        app = app_of("local", *DIGITS, "rounds=1", out=str(home / "run"), nodes=3)
        run_server(FakeGrid(app, thirds(tmp_path)), app.config(), "1")
    runs = list((tmp_path / "memory1").iterdir())
    assert len(runs) == 2
    assert all(len(list(Path(run).iterdir())) == 1 for run in runs)
