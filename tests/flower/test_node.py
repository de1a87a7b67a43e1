"""What a node does, and what no message can make it do."""

from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import SettingError
from coterie.flower.memory_folders import kept_runs
from coterie.flower.node import Node, NodeFile, NodeWorker
from coterie.flower.server import run_server
from coterie.flower.wire import BadPacket, Packet, decode_packet
from tests.flower.fake import (
    DIGITS,
    IFCA,
    FakeGrid,
    alike,
    deployed,
    make_app,
    metrics_alike,
    simulated,
    thirds,
)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"do": "run"}, "not asked to"),
        ({"step": "__init__"}, "no client step"),
        ({"step": "init"}, "no client step"),
        ({"step": "train.__self__"}, "no client step"),
        ({"of": "os"}, "what its own file allows"),
        ({"of": "os:system"}, "what its own file allows"),
        ({"of": "coterie.algorithms.ifca:IFCA"}, "what its own file allows"),
        ({"settings": {}}, "other settings"),
        ({"names": ["0", "5"]}, "not here"),
        ({"run": "../../etc"}, "letters and digits"),
        ({"address": [[1]]}, "numbers and texts"),
        ({"round": True}, "`round`"),
    ],
)
def test_a_node_does_nothing_but_client_steps(tmp_path, header, says):
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    seen = []
    answer = grid.answer
    grid.answer = lambda node, message: seen.append(message) or answer(node, message)
    run_server(grid, make_app(*IFCA, out=str(tmp_path / "run"), nodes=3).config(), "1")
    packets = [decode_packet(message.content) for message in seen]
    packet = next(each for each in packets if each.header["do"] == "step")
    node = Node(app, thirds(tmp_path)[0])
    with pytest.raises((BadPacket, SettingError), match=says):
        node.answer(Packet({**packet.header, **header}, packet.tensors))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dat = 'x'", "did you mean `data`"),
        ("data = 3", "must be a text"),
        ("data", "cannot be read"),
        ("share = '4/3'", "as in 1/3"),
        ("share = 'half'", "as in 1/3"),
    ],
)
def test_a_node_file_that_cannot_be_is_refused(tmp_path, text, says):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(SettingError, match=says):
        NodeFile.read(tmp_path / "node.toml")


def test_shares_are_all_clients_once():
    for of in (1, 3, 7):
        bounds = [NodeFile(share=f"{i}/{of}").bounds(10) for i in range(1, of + 1)]
        assert [b for b, _ in bounds] == [0, *(e for _, e in bounds)][:-1]
        assert bounds[-1][1] == 10


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", [["fedavg", *DIGITS, "rounds=1"], ["local", *DIGITS, "rounds=1"]])
def test_a_node_removes_nothing_but_what_coterie_made(tmp_path, words):
    memory = tmp_path / "memory1"
    for name in ("patients", "letters", "0123456789abcdef", "photos"):
        (memory / name).mkdir(parents=True)
        (memory / name / "precious.csv").write_text(name)
    before = files_in(memory)
    for number in range(4):
        home = tmp_path / f"{number}"
        home.mkdir()
        deployed(home, words, grid=FakeGrid(make_app(*words), thirds(tmp_path)))
    assert {path: content for path, content in files_in(memory).items() if path in before} == before
    assert len(kept_runs(memory)) == 1, "runs that have finished go when another begins"


# Runs of algorithms whose clients keep something between rounds.
WITH_MEMORY = pytest.mark.parametrize(
    "words",
    [
        ["local", *DIGITS],
        ["ditto", *DIGITS],
        ["fpfc", *DIGITS, "lam=0.5"],
        ["k-fed", "gaussian-clusters"],
    ],
    ids=lambda words: words[0],
)


@WITH_MEMORY
def test_a_paused_run_goes_on_after_others(tmp_path, words):
    words = [*words, "rounds=4"]
    files = thirds(tmp_path)

    class Paused(Exception):
        pass

    class PausingGrid(FakeGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if any(decode_packet(m.content).header.get("round") == 2 for m in messages):
                raise Paused
            return super().push_messages(messages)

    with pytest.raises(Paused):
        deployed(tmp_path, words, grid=PausingGrid(make_app(*words), files))
    for number in range(3):
        home = tmp_path / f"other{number}"
        home.mkdir()
        other = [*words[:-1], "rounds=2", f"seed={number + 1}"]
        deployed(home, other, grid=FakeGrid(make_app(*other), files))
    run = deployed(tmp_path, words, grid=FakeGrid(make_app(*words), files), resume=True)
    whole = simulated(words)
    alike(run, whole)
    assert metrics_alike(run.metrics, whole.metrics, 1e-6)


@WITH_MEMORY
def test_a_node_without_the_memory_of_a_run_says_so_and_its_clients_are_left_out(tmp_path, words):
    grid = FakeGrid(make_app(*words, "rounds=3"), thirds(tmp_path))
    push = grid.push_messages

    def replace_the_third_node(messages):
        messages = list(messages)
        if any(decode_packet(m.content).header.get("round") == 1 for m in messages):
            grid.workers[3] = NodeWorker(replace(thirds(tmp_path)[2], memory=str(tmp_path / "new")))
        return push(messages)

    grid.push_messages = replace_the_third_node
    run = deployed(tmp_path, [*words, "rounds=3"], grid=grid)
    said = [text for text in run.warnings if "is not in its node's memory any more" in text]
    assert said
    assert "node 3 replied with an error: what client" in said[0]
    answered = [record["answered"] for record in run.records]
    assert answered[0] > answered[1] == answered[2]
