"""A SuperNode of ours waits less than Flower's, and not at the server's cost."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.deploy import supernode
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.processes import free_ports
from coterie.deploy.supernode import Pauses, sign_off


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves on; the list of all sleeps."""
    slept = []
    monkeypatch.setattr(supernode.time, "monotonic", lambda: 100.0 + sum(slept))
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    return slept


def test_the_longer_no_message_comes_the_less_often_it_asks(clock):
    pauses = Pauses()
    while sum(clock) < 120:
        pauses.sleep(3)
    assert clock[:10] == [0.1] * 10  # the first second
    assert clock == sorted(clock)
    assert clock[-1] == 3
    for i, pause in enumerate(clock):  # nobody waits much longer for us than we did for them
        assert pause <= max(0.1, 0.1 * sum(clock[:i]) + 1e-9)
    pauses.sleep(0.5)  # it has a message, and waits for the worker's reply
    assert clock[-1] == 0.02
    pauses.sleep(3)
    assert clock[-1] == 0.1


# What Flower would have been started with, in a process of its own since it changes Flower.
STARTED = """
import json
from flwr.supernode import cli, fleet_http_connection, start_client_internal
from flwr.supercore import heartbeat
from flwr.supercore.inflatable import inflatable_utils
from flwr.common import constant
from coterie.deploy import supernode

def started():
    waits = inflatable_utils.pull_objects.__kwdefaults__
    print(json.dumps([
        fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL,
        heartbeat.HEARTBEAT_DEFAULT_INTERVAL,
        constant.HEARTBEAT_DEFAULT_INTERVAL,
        type(start_client_internal.time).__name__,
        [waits[name] for name in ("initial_backoff", "backoff_cap", "max_time")],
    ]))

cli.flower_supernode = started
supernode.main()
"""


def test_the_waits_are_those_of_the_node_and_no_others():
    # The third is the time after which a task of the worker is given up, which stays Flower's.
    found = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [10, 10, 30, "Pauses", [0.05, 2, 7200]]


def test_to_sign_off_where_nobody_answers_is_no_error(tmp_path):
    authority, key = make_authority(tmp_path / "tls"), make_node_key(tmp_path, "node")
    (port,) = free_ports(1)
    assert not sign_off(f"127.0.0.1:{port}", authority.certificate, key.private, 1)
