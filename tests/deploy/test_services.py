"""A server and nodes on machines of their own: who is let in, and how they end."""

import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.core.errors import SettingError
from coterie.deploy import services
from coterie.deploy.flwr_internals import ControlClient
from coterie.deploy.keys import make_authority
from coterie.deploy.processes import find_marked, free_ports
from coterie.deploy.services import node_commands, quote_path, run_node, run_superlink

from .helpers import IDLE, linux, python, until


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("unregistered", "Failed to activate SuperNode"),
        ("without a key", "All SuperNodes must be registered"),
        ("in plain text", "Failed to initialize the connection"),
        ("other authority", "certificate verify failed"),
    ],
)
def test_a_node_that_cannot_prove_itself_or_speaks_plainly_is_refused(attempts, name, complaint):
    _, joined, said = attempts[name]
    assert not joined
    assert complaint in said


def test_a_node_with_a_registered_key_is_let_in_and_missed_soon(attempts, server):
    from flwr.proto.control_pb2 import ListNodesRequest

    _, joined, said = attempts["registered"]
    assert joined
    with ControlClient(server.superlink, server.ca) as control:
        nodes = control.client.ListNodes(ListNodesRequest()).nodes_info
    (node,) = (each for each in nodes if f"SuperNode ID: {each.node_id}" in said)
    assert node.status == "online"
    assert node.heartbeat_interval == 10


NODE = """
import sys
from pathlib import Path
from coterie.deploy.services import run_node
node, superlink = Path(sys.argv[1]), sys.argv[2]
show = lambda line: print(line, flush=True)
worker = [sys.executable, "-c", sys.argv[3]]
sys.exit(run_node(node, superlink, None, None, show=show, worker=worker))
"""


@linux
def test_a_node_that_is_told_to_stop_stops_whole_and_without_complaint(place):
    (port,) = free_ports(1)  # nobody answers there: the SuperNode goes on asking
    program = subprocess.Popen(
        [sys.executable, "-c", NODE, place.nodes[0], f"127.0.0.1:{port}", IDLE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with program:
        assert program.stdout.readline() == f"node one: asking 127.0.0.1:{port} for work\n"
        until(lambda: len(find_marked(place.mark)) >= 3)
        program.terminate()
        assert program.stdout.read() == "node one was stopped\n"
    assert program.returncode == 0
    assert place.nothing_is_left()


# A worker that answers its SuperNode a few times and then no more, although it runs.
HANGS = """
import sys, time
from pathlib import Path
for _ in range(4):
    Path(sys.argv[4]).touch()
    time.sleep(1)
time.sleep(600)
"""


@linux
def test_a_node_whose_processes_do_not_answer_each_other_ends_whole(place, monkeypatch, capfd):
    monkeypatch.setattr(services, "SILENT_SECONDS", 2.0)
    code = run_node(
        place.nodes[0], "127.0.0.1:1", None, None, show=place.said.append, worker=python(HANGS)
    )
    assert code == 1
    assert re.search("of node one are ended: .* not answered each other for [23] s", place.said[-1])
    assert place.nothing_is_left()


@linux
def test_a_node_whose_worker_dies_ends_whole_and_with_a_complaint(place, capfd):
    short = IDLE.replace("600", "1")
    code = run_node(
        place.nodes[0], "127.0.0.1:1", None, None, show=place.said.append, worker=python(short)
    )
    assert code == 1
    assert place.said[-1] == "the worker of node one ended with code 0"
    assert place.nothing_is_left()


def test_a_server_that_cannot_begin_says_why(tmp_path):
    with pytest.raises(SettingError, match=r"there is no file .*ca\.pem"):
        run_superlink(tmp_path / "tls", tmp_path)
    make_authority(tmp_path / "tls")
    with pytest.raises(SettingError, match=r"there is no folder .*nodes"):
        run_superlink(tmp_path / "tls", tmp_path / "nodes")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} of 127.0.0.1 is taken"):
            run_superlink(
                tmp_path / "tls", tmp_path, host="127.0.0.1", port=port, own_port=free_ports(1)[0]
            )


@linux
def test_a_second_server_of_a_machine_starts_beside_the_first(server, tmp_path, monkeypatch):
    """Only the port of the gate is chosen: the SuperLink takes one that is free with it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    other = make_authority(tmp_path / "tls")
    (tmp_path / "nodes").mkdir()
    port = next(port for port in free_ports(20) if port <= 55_535)
    words = ["deploy", "superlink", other.folder, tmp_path / "nodes", "--host", "127.0.0.1"]
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "coterie", *words, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    )
    with program:
        said = program.stdout.readline()
        program.terminate()
        program.stdout.read()
    own = f"127.0.0.1:{services.default_own_port(port)}"
    assert said == f"nodes: 127.0.0.1:{port}, users on this machine: {own}\n"
    assert program.returncode == 0
    assert server.program.poll() is None


def test_a_path_with_both_kinds_of_quotes_is_refused(tmp_path):
    with pytest.raises(SettingError, match="both kinds of quotes"):
        quote_path(tmp_path / "'\"")


def test_a_worker_and_its_supernode_share_a_secret_that_nobody_else_can_read(tmp_path):
    one, two = (
        node_commands(tmp_path / "n", "x:1", None, None, tmp_path, name, 5, worker=["do"])
        for name in ("1", "2")
    )
    secret = tmp_path / "1.secret"
    assert one.worker == ["do", str(tmp_path / "n"), "127.0.0.1:5", str(secret), str(one.ready)]
    assert one.supernode[one.supernode.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert secret.stat().st_mode & 0o077 == 0
    assert len(secret.read_bytes()) == 32
    assert secret.read_bytes() != (tmp_path / "2.secret").read_bytes()
    assert one.ready != two.ready
