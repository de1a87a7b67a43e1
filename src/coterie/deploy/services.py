"""The two services of a deployment that is spread over several machines.

`serve_superlink` runs on the machine to which the others connect, `serve_node` on each machine that
holds data. Both run until they are told to stop, and end whole: no process of theirs lives on. A
service manager starts them again when they fail (see docs/deploy.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.commands import (
    GATE,
    HOST,
    START_SECONDS,
    WORKER,
    node_commands,
    own_home,
    superlink_command,
    temporary_folder,
)
from coterie.deploy.control import Control
from coterie.deploy.keys import Authority, need_flower
from coterie.deploy.processes import Processes, answers, free_ports

POLL_SECONDS = 0.2  # between looks at our processes
NODES_SECONDS = 2.0  # between looks for the keys of new nodes

Show = Callable[[str], None]  # one line for the user


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def serve_node(
    node: Path,
    superlink: str,
    ca: Path | None,
    key: Path | None,
    *,
    port: int | None = None,
    show: Show = say,
    worker: Sequence[str] = WORKER,
) -> int:
    """Be a node until stopped: 0 after SIGTERM or Ctrl-C, 1 if one of its processes ended.

    node       its NODE.toml
    superlink  host:port of the SuperLink, as named in its certificate
    ca         the authority's certificate; None: without encryption
    key        the node's private key; None: without authentication
    port       of this machine, for its two processes to meet (default: a free one)
    worker     command of the worker, as `node_commands` has it

    What the processes say goes to standard error. Both processes end together; a service manager
    then starts the node anew (see docs/deploy.md).
    """
    need_flower()
    for path in filter(None, (node, ca, key)):
        if not path.is_file():
            raise SettingError(f"there is no file {path}")
    with contextlib.suppress(KeyboardInterrupt), temporary_folder() as home:
        own_port = free_ports(1)[0] if port is None else port
        commands = node_commands(node, superlink, ca, key, home, "node", own_port, worker=worker)
        with Processes(None, own_home(home)) as processes:
            children = [processes.start("worker", commands.worker)]
            children[0].wait_for_file(commands.ready, START_SECONDS)
            children.append(processes.start("supernode", commands.supernode))
            show(f"node {node.stem}: asking {superlink} for work")
            while all(child.alive for child in children):
                time.sleep(POLL_SECONDS)
            for child in children:
                if not child.alive:
                    show(f"the {child.name} of node {node.stem} {child.ending}")
            return 1
    show(f"node {node.stem} was stopped")
    return 0


def serve_superlink(
    keys: Path,
    nodes: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 9092,
    own_port: int = 8000,
    show: Show = say,
) -> int:
    """Be the server of a deployment until stopped: 0 after SIGTERM or Ctrl-C, 1 if it failed.

    keys      folder of `make_authority`
    nodes     folder with the public keys (NAME.pub) of the nodes that may join; a file that is
              added while we run is seen within seconds
    host      where nodes are listened to, through the gate (see gate.py), and on which `port`
    own_port  where the SuperLink itself listens, on this machine only: for `flwr run` and others

    What is in memory of the SuperLink is lost when it ends; runs go on from their checkpoints.
    """
    need_flower()
    authority = Authority(keys)
    for path in (authority.certificate, authority.server_certificate, authority.server_key):
        if not path.is_file():
            raise SettingError(f"there is no file {path}; `coterie deploy keys` makes it")
    if not nodes.is_dir():
        raise SettingError(f"there is no folder {nodes} with the public keys of nodes")
    near = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # where we reach our own gate
    for address, taken in ((HOST, own_port), (near, port)):
        if answers(address, taken):
            raise SettingError(f"port {taken} of {address} is taken by another program")
    superlink = f"{HOST}:{own_port}"
    with (
        contextlib.suppress(KeyboardInterrupt),
        temporary_folder() as home,
        Processes(None, own_home(home)) as processes,
    ):
        link = processes.start("superlink", superlink_command(authority, port=own_port))
        link.wait_for_port(own_port, seconds=START_SECONDS)
        with Control(superlink, authority.certificate) as control:
            known: set[Path] = set()
            register_new(control, nodes, known, show)
            words = [host, str(port), str(own_port), str(keys.resolve())]
            door = processes.start("gate", [*GATE, *words])
            door.wait_for_port(port, near, START_SECONDS)
            show(f"nodes: {host}:{port}, users on this machine: {superlink}")
            while link.alive and door.alive:
                register_new(control, nodes, known, show)
                time.sleep(NODES_SECONDS)
        for child in (link, door):
            if not child.alive:
                show(f"the {child.name} {child.ending}")
        return 1
    show("the server was stopped")
    return 0


def register_new(control: Control, nodes: Path, known: set[Path], show: Show) -> None:
    """Register the public keys that have been put into a folder; a bad one is named and left."""
    for path in sorted(set(nodes.glob("*.pub")) - known):
        known.add(path)
        try:
            control.register(path)
            show(f"node {path.stem} may join")
        except (CoterieError, OSError) as error:
            show(f"node {path.stem} may not join: {error}")
