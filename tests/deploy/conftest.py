"""A place to deploy in, a server, and nodes that try to join it."""

import pytest

from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.processes import Processes, find_marked, free_ports, is_listening
from coterie.deploy.services import flower_home, node_commands

from .helpers import Place, Server, until


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    return Place(tmp_path_factory.mktemp("d"), monkeypatch)


@pytest.fixture(scope="session")
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
    assert not find_marked(server.mark)
    assert not any(is_listening(*place.split(":")) for place in (server.gate, server.superlink))


@pytest.fixture(scope="session")
def known(server, tmp_path_factory):
    """The key of a node that was put into the server's folder while the server ran."""
    key = make_node_key(tmp_path_factory.mktemp("keys"), "known")
    (server.nodes / "known.pub").write_bytes(key.public.read_bytes())
    assert next(server.said) == "node known may join\n"
    return key


@pytest.fixture(scope="session")
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
    with Processes(folder / "logs", flower_home(folder), stop_seconds=1) as processes:
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
