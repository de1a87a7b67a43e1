"""The two services of a deployment that is spread over several machines.

`run_superlink` runs on the machine to which the others connect, `run_node` on each machine that
holds data. Both run until they are told to stop, and end all their processes. A service manager
starts them again when they fail (see docs/deploy.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.flwr_internals import ControlClient, need_flower
from coterie.deploy.keys import Authority
from coterie.deploy.process_commands import (
    GATE,
    HOST,
    START_SECONDS,
    WORKER,
    flower_home,
    node_commands,
    superlink_command,
    temporary_folder,
)
from coterie.deploy.processes import Child, Processes, free_ports, is_listening

POLL_SECONDS = 0.2  # between two looks at our processes
NODES_SECONDS = 2.0  # between two looks for the keys of new nodes

Show = Callable[[str], None]  # one line for the user


def print_line(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def run_node(
    node: Path,
    superlink: str,
    ca: Path | None,
    key: Path | None,
    *,
    port: int | None = None,
    show: Show = print_line,
    worker: Sequence[str] = WORKER,
) -> int:
    """Run a node until it is stopped: 0 after SIGTERM or Ctrl-C, 1 if one of its processes ended.

    node       its NODE.toml
    superlink  host:port of the SuperLink, as named in its certificate
    ca         the authority's certificate; None: without encryption
    key        the node's private key; None: without authentication
    port       of this machine, where the worker reaches the SuperNode (default: a free one)
    worker     command of the worker, as `node_commands` has it

    The output of the processes goes to standard error. If one of them ends, the other is ended.
    """
    need_flower()
    for path in filter(None, (node, ca, key)):
        if not path.is_file():
            raise SettingError(f"there is no file {path}")
    with contextlib.suppress(KeyboardInterrupt), temporary_folder() as home:
        own_port = free_ports(1)[0] if port is None else port
        commands = node_commands(node, superlink, ca, key, home, "node", own_port, worker=worker)
        with Processes(None, flower_home(home)) as processes:
            children = [processes.start("worker", commands.worker)]
            children[0].wait_for_file(commands.ready, START_SECONDS)
            children.append(processes.start("supernode", commands.supernode))
            show(f"node {node.stem}: asking {superlink} for work")
            while all(child.alive for child in children):
                time.sleep(POLL_SECONDS)
            show_ended(children, f" of node {node.stem}", show)
            return 1
    show(f"node {node.stem} was stopped")
    return 0


def run_superlink(
    keys: Path,
    nodes: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 9092,
    own_port: int = 8000,
    show: Show = print_line,
) -> int:
    """Run the server of a deployment until stopped: 0 after SIGTERM or Ctrl-C, 1 if it failed.

    keys      folder of `make_authority`
    nodes     folder with the public keys (NAME.pub) of the nodes that may join; a file that is
              added later is seen within seconds
    host      where the gate (gate.py) listens to nodes, and on which `port`
    own_port  where the SuperLink itself listens, on this machine only: for `flwr run` and others

    What the SuperLink has in memory is lost when it ends; runs go on from their checkpoints.
    """
    need_flower()
    authority = Authority(keys)
    for path in (authority.certificate, authority.server_certificate, authority.server_key):
        if not path.is_file():
            raise SettingError(f"there is no file {path}; `coterie deploy keys` makes it")
    if not nodes.is_dir():
        raise SettingError(f"there is no folder {nodes} with the public keys of nodes")
    own_host = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # where we reach the gate ourselves
    for address, taken in ((HOST, own_port), (own_host, port)):
        if is_listening(address, taken):
            raise SettingError(f"port {taken} of {address} is taken by another program")
    superlink = f"{HOST}:{own_port}"
    with (
        contextlib.suppress(KeyboardInterrupt),
        temporary_folder() as home,
        Processes(None, flower_home(home)) as processes,
    ):
        link = processes.start("superlink", superlink_command(authority, port=own_port))
        link.wait_for_port(own_port, seconds=START_SECONDS)
        with ControlClient(superlink, authority.certificate) as control:
            seen: set[Path] = set()
            register_new_keys(control, nodes, seen, show)
            arguments = [host, str(port), str(own_port), str(keys.resolve())]
            gate = processes.start("gate", [*GATE, *arguments])
            gate.wait_for_port(port, own_host, START_SECONDS)
            show(f"nodes: {host}:{port}, users on this machine: {superlink}")
            while link.alive and gate.alive:
                register_new_keys(control, nodes, seen, show)
                time.sleep(NODES_SECONDS)
        show_ended([link, gate], "", show)
        return 1
    show("the server was stopped")
    return 0


def show_ended(children: Sequence[Child], of: str, show: Show) -> None:
    """Say which processes ended, and how."""
    for child in children:
        if not child.alive:
            show(f"the {child.name}{of} {child.ending}")


def register_new_keys(control: ControlClient, nodes: Path, seen: set[Path], show: Show) -> None:
    """Register the public keys that were put into a folder; a bad one is named and left out."""
    for path in sorted(set(nodes.glob("*.pub")) - seen):
        seen.add(path)
        try:
            control.register_node(path)
            show(f"node {path.stem} may join")
        except (CoterieError, OSError) as error:
            show(f"node {path.stem} may not join: {error}")
