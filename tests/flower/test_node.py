"""What a node does, and what no message can make it do."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import SettingError
from coterie.flower.node import Node, NodeFile
from coterie.flower.server import run_server
from coterie.flower.wire import BadPacket, Packet, decode_packet
from tests.flower.fake import DIGITS, IFCA, FakeGrid, make_app, thirds


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


def test_nodes_keep_the_memory_of_two_runs(tmp_path):
    for number in range(4):
        home = tmp_path / f"{number}"
        home.mkdir()
        app = make_app("local", *DIGITS, "rounds=1", out=str(home / "run"), nodes=3)
        run_server(FakeGrid(app, thirds(tmp_path)), app.config(), "1")
    runs = list((tmp_path / "memory1").iterdir())
    assert len(runs) == 2
    assert all(len(list(Path(run).iterdir())) == 1 for run in runs)
