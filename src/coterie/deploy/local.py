"""A whole deployment on this machine: a rehearsal with everything that a real one has.

A SuperLink, for each node a SuperNode and a worker, TLS, keys; a node that dies is started again,
as a service manager would do it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.commands import (
    HOST,
    START_SECONDS,
    WORKER,
    NodeCommands,
    node_commands,
    own_home,
    superlink_command,
    temporary_folder,
)
from coterie.deploy.control import Control, Status, bundled
from coterie.deploy.keys import make_authority, make_node_key, need_flower
from coterie.deploy.processes import Child, Processes, free_ports
from coterie.deploy.services import Show, say
from coterie.deploy.supernode import sign_off
from coterie.experiment.sweeps import thread_limits

ROUNDS_SECONDS = 0.2  # between looks at the run folder
STATUS_SECONDS = 1.0  # between questions to the SuperLink
RESTART_SECONDS = 1.0  # before a node that has ended is started again
RESTARTS = 20  # of one node

OnRound = Callable[[dict[str, Any]], None]  # one record of rounds.jsonl


def run_local(
    app: Path,
    nodes: Sequence[Path],
    *,
    out: Path,
    resume: bool = False,
    show: Show = say,
    on_round: OnRound | None = None,
    logs: Path | None = None,
    worker: Sequence[str] = WORKER,
) -> int:
    """Run an app on this machine with one node per file; 0 if the run was completed, else 1.

    app       folder of the app
    nodes     one NODE.toml per node
    out       run folder that the ServerApp writes; must be new unless `resume`
    show      is told what happens, line by line
    on_round  is given each new record of out/rounds.jsonl
    logs      folder to keep what the processes say; else it goes with the temporary folder
    worker    command of the workers, as `node_commands` has it

    Everything that is started is ended and everything temporary removed before this returns or
    raises, also for KeyboardInterrupt, as which SIGTERM is seen. If the SuperLink dies, this
    raises CoterieError; `resume=True` continues the run from its checkpoint.
    """
    need_flower()
    for path in nodes:
        if not path.is_file():
            raise SettingError(f"there is no node file {path}")
    if not nodes:
        raise SettingError("a deployment needs at least one node")
    bundle = bundled(app)
    rounds = Rounds(out / "rounds.jsonl")
    with temporary_folder() as home:
        authority = make_authority(home / "keys")
        ca = authority.certificate
        names = [f"node-{number}" for number in range(1, len(nodes) + 1)]
        keys = [make_node_key(home / "keys", name) for name in names]
        port, *ports = free_ports(1 + len(nodes))
        superlink = f"{HOST}:{port}"
        commands = [
            node_commands(path, superlink, ca, key.private, home, name, own_port, worker=worker)
            for path, key, name, own_port in zip(nodes, keys, names, ports, strict=True)
        ]
        with Processes(logs or home / "logs", own_home(home)) as processes:
            link = processes.start("superlink", superlink_command(authority, port=port))
            threads = thread_limits(len(nodes))
            running = [
                LocalNode(processes, name, command, threads)
                for name, command in zip(names, commands, strict=True)
            ]
            link.wait_for_port(port, seconds=START_SECONDS)
            try:
                with Control(superlink, ca) as control:
                    for node, key in zip(running, keys, strict=True):
                        number = control.register(key.public)
                        node.leave = partial(sign_off, superlink, ca, key.private, number)
                    for node in running:
                        node.wait_for_worker()
                    show(f"SuperLink on {superlink}, {len(nodes)} nodes (TLS and node keys)")
                    run = control.start_run(
                        bundle, {"out": str(out.resolve()), "nodes": len(nodes), "resume": resume}
                    )
                    status = follow(control, run, running, rounds, show, on_round)
            except CoterieError:
                if link.ends(1.0):
                    raise link.obituary() from None
                raise
    if status.completed:
        show("the run is complete")
        return 0
    show(f"the run {status.text}: {status.details or 'the log of the SuperLink may say why'}")
    return 1


def cause(ended: Sequence[Child]) -> Child:
    """Which of some processes ended first: one that was killed, for the others then give up."""
    return min(ended, key=lambda child: not child.killed)


class LocalNode:
    """The two processes of a node, which end together and are then started again."""

    def __init__(
        self,
        processes: Processes,
        name: str,
        commands: NodeCommands,
        environment: Mapping[str, str],
    ) -> None:
        self.processes = processes
        self.name = name
        self.commands = commands
        self.environment = environment
        self.leave: Callable[[], object] = lambda: None  # tells the SuperLink that it has gone
        self.restarts = RESTARTS
        self.again = 0.0  # when to start again, where it has ended
        self.start()

    def start(self) -> None:
        """Start the worker; `watch` starts the SuperNode when the worker is ready."""
        self.commands.ready.unlink(missing_ok=True)
        self.supernode: Child | None = None
        self.worker = self.processes.start(
            f"{self.name}-worker", self.commands.worker, self.environment
        )

    def wait_for_worker(self) -> None:
        """Wait until the worker is ready and start the SuperNode; an error if it never is."""
        self.worker.wait_for_file(self.commands.ready, START_SECONDS)
        self.supernode = self.processes.start(self.name, self.commands.supernode)

    def watch(self, show: Show) -> None:
        """Do what is due; to be called often."""
        if self.again:
            if time.monotonic() >= self.again and self.restarts:
                self.again = 0.0
                self.restarts -= 1
                self.start()
            return
        children = [self.worker, *([self.supernode] if self.supernode else [])]
        ended = [child for child in children if not child.alive]
        if ended:
            more = "is started again" if self.restarts else "is given up"
            first = cause(ended)
            show(f"{self.name} {more}: {first.name} {first.ending}")
            for child in children:
                self.processes.end(child)
            self.leave()
            self.again = time.monotonic() + RESTART_SECONDS
        elif self.supernode is None and self.commands.ready.exists():
            self.supernode = self.processes.start(self.name, self.commands.supernode)

    @property
    def lost(self) -> bool:
        """Whether it has ended and is not started again."""
        return self.again > 0 and not self.restarts


def follow(
    control: Control,
    run: int,
    nodes: Sequence[LocalNode],
    rounds: Rounds,
    show: Show,
    on_round: OnRound | None,
) -> Status:
    """Wait for the end of a run; tell of its rounds, and keep its nodes alive."""
    asked, status = 0.0, None
    while True:
        if time.monotonic() - asked >= STATUS_SECONDS:
            status = control.status(run)
            asked = time.monotonic()
        for record in rounds.new():
            if on_round is not None:
                on_round(record)
        if status is not None and status.finished:
            return status
        for node in nodes:
            node.watch(show)
        if all(node.lost for node in nodes):
            raise CoterieError(f"all nodes have ended; {nodes[0].worker.obituary()}")
        time.sleep(ROUNDS_SECONDS)


class Rounds:
    """The records that a run adds to its rounds.jsonl from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Complete records since the last look; none where a resumed run has cut the file."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.position = min(self.position, size)
                file.seek(self.position)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self.position += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
