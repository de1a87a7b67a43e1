"""What the tests of deployments share: a place for one, and how to look at its processes."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from coterie.deploy.keys import make_authority
from coterie.deploy.processes import MARK, find_marked, free_ports, is_listening

from .echo import write_echo

linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
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
    """SIGKILL to the process of a deployment whose command has arguments that end so."""
    (found,) = (
        pid
        for pid in find_marked(mark)
        if all(any(word.endswith(one) for word in command(pid)) for one in endings)
    )
    os.kill(found, signal.SIGKILL)


def command(pid):
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
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
        assert not find_marked(self.mark)
        assert not list(self.temporary.iterdir())
        ports = re.findall(r"SuperLink on 127\.0\.0\.1:(\d+)", "\n".join(self.said))
        return not any(is_listening("127.0.0.1", int(port)) for port in ports)


SERVER = """
import sys
from pathlib import Path
from coterie.deploy.services import run_superlink
keys, nodes = map(Path, sys.argv[1:3])
port, own_port = map(int, sys.argv[3:])
sys.exit(run_superlink(keys, nodes, host="127.0.0.1", port=port, own_port=own_port))
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
