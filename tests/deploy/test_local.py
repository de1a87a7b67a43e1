"""Deployments on this machine: real processes, real TLS, and nothing left of them afterwards."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.commands import node_commands, own_home, quoted
from coterie.deploy.control import Control, bundled
from coterie.deploy.executor import execute
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.local import Rounds, cause, run_local
from coterie.deploy.processes import MARK, Processes, answers, free_ports, marked
from coterie.deploy.services import serve_node, serve_superlink

from .echo import worker, write_echo

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
# Stands in for a worker: says that it is ready and does nothing.
IDLE = """
import sys, time
from pathlib import Path
Path(sys.argv[4]).touch()
time.sleep(600)
"""


def python(code):
    return [sys.executable, "-c", code]


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(mark, *endings):
    """SIGKILL to the process of a deployment whose command has words that end so."""
    (found,) = (
        pid
        for pid in marked(mark)
        if all(any(word.endswith(one) for word in command(pid)) for one in endings)
    )
    os.kill(found, signal.SIGKILL)


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


class Place:
    """Where a test deploys; all its processes carry a mark, all temporary files have one folder."""

    def __init__(self, folder, monkeypatch):
        self.app = write_echo(folder / "echo")
        self.out = folder / "out"
        self.logs = folder / "logs"
        self.nodes = [folder / "one.toml", folder / "it's two.toml"]
        for node in self.nodes:
            node.write_text("")
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.mark = folder.name + str(time.time_ns())
        self.said = []
        monkeypatch.setenv(MARK, self.mark)
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))

    def nothing_is_left(self):
        assert not set(marked(self.mark))
        assert not list(self.temporary.iterdir())
        ports = re.findall(r"SuperLink on 127\.0\.0\.1:(\d+)", "\n".join(self.said))
        return not any(answers("127.0.0.1", int(port)) for port in ports)


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    return Place(tmp_path_factory.mktemp("d"), monkeypatch)


@linux
def test_the_process_that_was_killed_is_the_cause(tmp_path):
    """A worker whose SuperNode is killed gives up by itself; both are seen at the same time."""
    with Processes(tmp_path) as processes:
        gave_up = processes.start("worker", python("raise SystemExit(1)"))
        killed = processes.start("supernode", python("import time; time.sleep(600)"))
        os.kill(killed.process.pid, signal.SIGKILL)
        assert gave_up.ends(10)
        assert killed.ends(10)
        assert cause([gave_up, killed]) is killed
        assert cause([gave_up]) is gave_up


@linux
@pytest.mark.slow
def test_a_run_goes_on_without_a_node_that_was_killed_until_it_is_back(place):
    write_echo(place.app, rounds=0)  # until there is a file "enough"
    one, two = (str(node) for node in place.nodes)
    both = sorted([one, two])
    victims = [("node-1.secret", "coterie.deploy.supernode"), ("node-2.ready",)]
    seen = []  # who took part, where that changed

    def on_round(record):
        if seen[-1:] == [record["nodes"]]:
            return
        seen.append(record["nodes"])
        if record["nodes"] == both:
            if victims:
                kill(place.mark, *victims.pop(0))
            else:
                (place.out / "enough").touch()

    code = run_local(
        place.app,
        place.nodes,
        out=place.out,
        show=place.said.append,
        on_round=on_round,
        logs=place.logs,
        worker=python(worker()),
    )
    assert code == 0
    assert seen == [both, [two], both, [one], both]
    assert place.said[1:] == [
        "node-1 is started again: node-1 was killed by signal 9",
        "node-2 is started again: node-2-worker was killed by signal 9",
        "the run is complete",
    ]
    # It was let in at once, and not only when its heartbeats had been missed.
    said = (place.logs / "node-1.log").read_text()
    assert said.count("SuperNode ID:") == 2
    assert "Failed to activate" not in said
    assert place.nothing_is_left()


@linux
@pytest.mark.slow
def test_a_run_that_fails_says_why_and_leaves_nothing(place):
    # A round succeeds, in the next one the client step fails, and the server cannot do without it.
    records = []
    code = run_local(
        place.app,
        place.nodes[:1],
        out=place.out,
        show=place.said.append,
        on_round=records.append,
        worker=python(worker(fails_at=1)),
    )
    assert code == 1
    assert [record["round"] for record in records] == [0]
    assert place.said[-1] == "the run failed: ValueError: 1 is too much"
    assert place.nothing_is_left()


# Deploys as a program of its own: app, out, node.
PROGRAM = f"""
import signal, sys
from pathlib import Path
from coterie.core.errors import CoterieError
from coterie.deploy.local import run_local
signal.signal(signal.SIGINT, signal.default_int_handler)
app, out, node = map(Path, sys.argv[1:])
show = lambda line: print(line, flush=True)
try:
    run_local(app, [node], out=out, show=show, worker=[sys.executable, "-c", {IDLE!r}])
except KeyboardInterrupt:
    show("interrupted")
except CoterieError as error:
    show(str(error))
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize("event", ["SIGTERM", "SIGKILL", "death of the SuperLink"])
def test_an_interrupted_deployment_leaves_nothing(place, event):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place.app, place.out, place.nodes[1]],
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        place.said.append(program.stdout.readline())
        assert "TLS and node keys" in place.said[0]
        until(lambda: len(set(marked(place.mark))) >= 5)  # we, SuperLink, SuperExec, node, worker
        if event.startswith("SIG"):
            program.send_signal(getattr(signal, event))
        else:
            kill(place.mark, "flower-superlink")
        last = program.stdout.read()
    if event == "SIGKILL":  # we cannot clean up, but no process lives on
        until(lambda: not set(marked(place.mark)), seconds=15)
        return
    assert program.returncode == 0
    assert (
        "interrupted" if event.startswith("SIG") else "superlink was killed by signal 9"
    ) in last
    assert place.nothing_is_left()


@linux
def test_a_worker_that_cannot_begin_is_quoted_and_nothing_is_left(place):
    with pytest.raises(CoterieError, match=r"(?s)node-1-worker ended with code 2.*no column"):
        run_local(
            place.app,
            place.nodes,
            out=place.out,
            show=place.said.append,
            worker=python("import sys; print('no column `age`'); sys.exit(2)"),
        )
    assert place.nothing_is_left()


SERVER = """
import sys
from pathlib import Path
from coterie.deploy.services import serve_superlink
keys, nodes = map(Path, sys.argv[1:3])
port, own_port = map(int, sys.argv[3:])
sys.exit(serve_superlink(keys, nodes, host="127.0.0.1", port=port, own_port=own_port))
"""


class Server:
    """A SuperLink and its gate, as on a machine of their own."""

    def __init__(self, folder):
        self.authority = make_authority(folder / "tls")
        self.ca = self.authority.certificate
        self.nodes = folder / "nodes"
        self.nodes.mkdir()
        port, own_port = free_ports(2)
        self.gate, self.superlink = f"127.0.0.1:{port}", f"127.0.0.1:{own_port}"
        self.mark = folder.name + str(time.time_ns())
        self.program = subprocess.Popen(
            [*python(SERVER), self.authority.folder, self.nodes, str(port), str(own_port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, MARK: self.mark},
        )
        self.said = iter(self.program.stdout.readline, "")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server in whose folder of nodes is a bad key; that it ends whole is seen at the end."""
    folder = tmp_path_factory.mktemp("server")
    server = Server(folder)
    (server.nodes / "broken.pub").write_text("no key")
    with server.program as program:
        try:
            assert next(server.said).startswith("node broken may not join: ")
            assert next(server.said) == (
                f"nodes: {server.gate}, users on this machine: {server.superlink}\n"
            )
            yield server
        finally:
            program.terminate()
        assert list(server.said) == ["the server was stopped\n"]
    assert program.returncode == 0
    assert not set(marked(server.mark))
    assert not any(answers(*place.split(":")) for place in (server.gate, server.superlink))


@pytest.fixture(scope="module")
def known(server, tmp_path_factory):
    """The key of a node that was put into the server's folder while the server ran."""
    key = make_node_key(tmp_path_factory.mktemp("keys"), "known")
    (server.nodes / "known.pub").write_bytes(key.public.read_bytes())
    assert next(server.said) == "node known may join\n"
    return key


@pytest.fixture(scope="module")
def attempts(server, known, tmp_path_factory):
    """SuperNodes that try to join: for each its port, whether it was let in, what it said."""
    folder = tmp_path_factory.mktemp("attempts")
    stranger, other = make_node_key(folder, "stranger"), make_authority(folder / "other")
    tries = {
        "registered": (server.gate, server.ca, known.private),
        "unregistered": (server.gate, server.ca, stranger.private),
        "without a key": (server.gate, server.ca, None),
        "in plain text": (server.gate, None, None),
        "other authority": (server.gate, other.certificate, known.private),
    }
    with Processes(folder / "logs", own_home(folder), patience=1) as processes:
        ports, children = dict(zip(tries, free_ports(len(tries)), strict=True)), {}
        for name, (address, ca, key) in tries.items():
            words = node_commands(folder / "n.toml", address, ca, key, folder, name, ports[name])
            children[name] = processes.start(name, [*words.supernode, "--max-retries", "1"])
        for child in children.values():
            until(lambda c=child: "SuperNode ID:" in c.log.read_text() or not c.alive)
        yield {
            name: (ports[name], child.alive, child.log.read_text())
            for name, child in children.items()
        }


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
    with Control(server.superlink, server.ca) as control:
        (node,) = control.client.ListNodes(ListNodesRequest()).nodes_info
    assert f"SuperNode ID: {node.node_id}" in said
    assert node.status == "online"
    assert node.heartbeat_interval == 10


def test_nobody_without_the_secret_can_take_the_messages_of_a_node(attempts):
    port, _, _ = attempts["registered"]
    with pytest.raises(CoterieError, match="does not let us work"):
        execute(lambda message, context: message, f"127.0.0.1:{port}", b"a guess")


@pytest.mark.parametrize(
    "path",
    [
        "v1/control/start-run",
        "v1/control/register-node",
        "v1/runtime/acquire-task",
        "v1/fleet/%2e%2e",
        "v1/fleet/..%2fcontrol%2fstart-run",
        "docs",
    ],
)
def test_the_gate_lets_nothing_through_but_what_nodes_need(server, path):
    trust = ssl.create_default_context(cafile=server.ca)
    with httpx.Client(verify=trust, trust_env=False) as client:
        assert client.post(f"https://{server.gate}/{path}").status_code == 404
        assert client.post(f"https://{server.gate}/v1/fleet/pull-messages").status_code != 404


def test_users_cannot_come_through_the_gate(server, tmp_path):
    key = make_node_key(tmp_path, "new").public
    with (
        Control(server.gate, server.ca) as control,
        pytest.raises(CoterieError, match=r"refused to register new\.pub"),
    ):
        control.register(key)


def test_a_user_in_plain_text_is_refused(server, known):
    with (
        Control(server.superlink, None) as control,
        pytest.raises(CoterieError, match="does not answer"),
    ):
        control.register(known.public)


def test_a_key_can_be_registered_only_once(server, known):
    with (
        Control(server.superlink, server.ca) as control,
        pytest.raises(CoterieError, match=r"refused to register known\.pub"),
    ):
        control.register(known.public)


def test_a_folder_that_is_no_app_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"it has no pyproject\.toml"):
        bundled(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(SettingError, match="is not an app that Flower can take"):
        bundled(tmp_path)


NODE = """
import sys
from pathlib import Path
from coterie.deploy.services import serve_node
node, superlink = Path(sys.argv[1]), sys.argv[2]
show = lambda line: print(line, flush=True)
worker = [sys.executable, "-c", sys.argv[3]]
sys.exit(serve_node(node, superlink, None, None, show=show, worker=worker))
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
        until(lambda: len(set(marked(place.mark))) >= 3)
        program.terminate()
        assert program.stdout.read() == "node one was stopped\n"
    assert program.returncode == 0
    assert place.nothing_is_left()


@linux
def test_a_node_whose_worker_dies_ends_whole_and_with_a_complaint(place, capfd):
    short = IDLE.replace("600", "1")
    code = serve_node(
        place.nodes[0], "127.0.0.1:1", None, None, show=place.said.append, worker=python(short)
    )
    assert code == 1
    assert place.said[-1] == "the worker of node one ended with code 0"
    assert place.nothing_is_left()


def test_a_server_that_cannot_begin_says_why(tmp_path):
    with pytest.raises(SettingError, match=r"there is no file .*ca\.pem"):
        serve_superlink(tmp_path / "tls", tmp_path)
    make_authority(tmp_path / "tls")
    with pytest.raises(SettingError, match=r"there is no folder .*nodes"):
        serve_superlink(tmp_path / "tls", tmp_path / "nodes")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} of 127.0.0.1 is taken"):
            serve_superlink(
                tmp_path / "tls", tmp_path, host="127.0.0.1", port=port, own_port=free_ports(1)[0]
            )


def test_flower_reads_the_paths_of_a_node_as_they_are(tmp_path):
    from flwr.common.config import parse_config_args

    for name in ("a b.toml", "it's.toml", 'so "called".toml', "back\\slash.toml", "ü=1 x=2.toml"):
        node = tmp_path / name
        words = node_commands(node, "x:1", None, None, tmp_path, "n", 5).supernode
        given = words[words.index("--node-config") + 1]
        assert parse_config_args([given]) == {"node": str(node)}
    with pytest.raises(SettingError, match="both kinds of quotes"):
        quoted(tmp_path / "'\"")


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


def test_rounds_are_told_once_and_only_when_complete(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n')
    rounds = Rounds(path)
    assert rounds.new() == []  # they were there before
    with open(path, "a") as file:
        file.write('{"round": 3}\n{"rou')
    assert rounds.new() == [{"round": 3}]
    with open(path, "a") as file:
        file.write('nd": 4}\n')
    assert rounds.new() == [{"round": 4}]
    path.write_text('{"round": 1}\n')  # a resumed run goes back to its checkpoint
    assert rounds.new() == []
    with open(path, "a") as file:
        file.write(json.dumps({"round": 2}) + "\n")
    assert rounds.new() == [{"round": 2}]


def test_a_run_folder_that_is_not_there_yet_has_no_rounds(tmp_path):
    assert Rounds(tmp_path / "rounds.jsonl").new() == []


def test_a_node_file_that_is_not_there_is_named_before_anything_starts(place):
    with pytest.raises(SettingError, match=r"there is no node file .*three\.toml"):
        run_local(place.app, [place.app / "three.toml"], out=place.out)
    with pytest.raises(SettingError, match="at least one node"):
        run_local(place.app, [], out=place.out)
