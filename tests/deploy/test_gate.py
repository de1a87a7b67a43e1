"""What nodes reach of a SuperLink, and what nobody does."""

import ssl

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import ControlClient
from coterie.deploy.keys import make_node_key


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
        ControlClient(server.gate, server.ca) as control,
        pytest.raises(CoterieError, match=r"refused to register new\.pub"),
    ):
        control.register_node(key)
