"""What nodes reach of a SuperLink, and what nobody does."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import ControlClient
from coterie.deploy.gate import make_gate
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.processes import Processes, free_ports
from coterie.deploy.services import node_commands

CLOSED = [
    "v1/control/start-run",
    "v1/control/register-node",
    "v1/runtime/acquire-task",
    "v1/fleet/%2e%2e",
    "v1/fleet/..%2fcontrol%2fstart-run",
    "docs",
]


def status(address, ca, path):
    """What a POST request is answered with."""
    with httpx.Client(verify=ssl.create_default_context(cafile=ca), trust_env=False) as client:
        return client.post(f"https://{address}/{path}").status_code


@pytest.mark.parametrize("path", CLOSED)
def test_the_gate_lets_nothing_through_but_what_nodes_need(server, path):
    assert status(server.gate, server.ca, path) == 404
    assert status(server.gate, server.ca, "v1/fleet/pull-messages") not in (404, 503)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_nginx_of_the_docs_lets_nothing_through_but_what_nodes_need(server, tmp_path):
    docs = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (block,) = docs.split("```nginx\n")[1:]
    (port,) = free_ports(1)
    block = block.split("```")[0].replace("listen 9092", f"listen 127.0.0.1:{port}")
    block = block.replace("127.0.0.1:8000", server.superlink)
    block = block.replace("/etc/coterie/tls", str(server.authority.folder))
    temporary = "".join(
        f"{name}_temp_path {tmp_path / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; user root; pid {tmp_path / 'pid'}; error_log stderr; events {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{block}}}\n"
    )
    with Processes(tmp_path / "logs") as processes:
        nginx = processes.start("nginx", ["nginx", "-c", tmp_path / "nginx.conf"])
        nginx.wait_for_port(port, seconds=20)
        for path in CLOSED:
            assert status(f"127.0.0.1:{port}", server.ca, path) == 404
        key = make_node_key(tmp_path, "node")
        with ControlClient(server.superlink, server.ca) as control:
            control.register_node(key.public)
        address = f"127.0.0.1:{port}"
        commands = node_commands(
            tmp_path / "n.toml", address, server.ca, key.private, tmp_path, "n", *free_ports(1)
        )
        node = processes.start("node", commands.supernode)
        node.wait_for(lambda: "SuperNode ID:" in node.log.read_text(), "join", 60)


def test_users_cannot_come_through_the_gate(server, tmp_path):
    key = make_node_key(tmp_path, "new").public
    with (
        ControlClient(server.gate, server.ca) as control,
        pytest.raises(CoterieError, match=r"refused to register new\.pub"),
    ):
        control.register_node(key)


def test_a_node_that_gives_up_in_the_middle_of_a_request_is_no_error_of_the_gate(
    tmp_path, monkeypatch
):
    async def send(client, request, **settings):
        async for _ in request.stream:
            pass

    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    gate = make_gate("127.0.0.1:1", make_authority(tmp_path / "keys").certificate)
    arrived = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/pull-messages", "headers": []}
    replies = []

    async def receive():
        return arrived.pop(0)

    async def reply(part):
        replies.append(part)

    asyncio.run(gate(scope, receive, reply))
    assert replies[0]["status"] == 400
