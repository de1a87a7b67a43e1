"""A whole deployment on this machine, to try out everything that a real one has.

A SuperLink, for each node a SuperNode and a worker, TLS, keys; a node that dies is started again,
as a service manager would do it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.flwr_internals import ControlClient, RunStatus, build_bundle, deactivate_node
from coterie.deploy.keys import Authority, NodeKey, make_authority, make_node_key
from coterie.deploy.processes import HOST, Child, Processes, free_ports
from coterie.deploy.services import (
    WORKER,
    NodeCommands,
    NodePulse,
    Show,
    flower_home,
    node_commands,
    print_line,
    superlink_command,
    temporary_folder,
)
from coterie.experiment.sweeps import thread_limits
from coterie.flower.app import app_settings
from coterie.flower.owners import NOT_KEPT

ROUNDS_SECONDS = 0.2  # between two looks at the run folder
STATUS_SECONDS = 1.0  # between two requests to the SuperLink
RESTART_SECONDS = 1.0  # before a node that has ended is started again
RESTARTS = 20  # of one node

OnRound = Callable[[dict[str, Any]], None]  # one record of rounds.jsonl


def run_local(
    app: Path,
    nodes: Sequence[Path],
    *,
    out: Path,
    resume: bool = False,
    show: Show = print_line,
    on_round: OnRound = lambda record: None,
    logs: Path | None = None,
    worker: Sequence[str] = WORKER,
    code: Path | None = None,
) -> int:
    """Run an app on this machine with one node per file; 0 if the run was completed, else 1.

    app       folder of the app
    nodes     one NODE.toml per node
    out       run folder that the ServerApp writes; must be new unless `resume`
    show      is given what happens, line by line
    on_round  is given each new record of out/rounds.jsonl
    logs      folder for the output of the processes; else it is removed with all that is temporary
    worker    command of the workers, as `node_commands` has it
    code      folder from which the processes can import, where the app names what is not installed

    Everything that is started is ended and everything temporary removed before this returns or
    raises, also for KeyboardInterrupt, as which SIGTERM is seen. If the SuperLink dies, this
    raises CoterieError; `resume=True` continues the run from its checkpoint.
    """
    for path in nodes:
        if not path.is_file():
            raise SettingError(f"there is no node file {path}")
    if not nodes:
        raise SettingError("a deployment needs at least one node")
    bundle = build_bundle(app)
    settings: dict[str, Any] = {"out": str(out.resolve()), "nodes": len(nodes), "resume": resume}
    if "owners" in app_settings(app):  # keys are new each time
        settings["owners"] = NOT_KEPT
    records = RoundRecords(out / "rounds.jsonl")
    with (
        temporary_folder() as home,
        Processes(logs or home / "logs", {**flower_home(home), **python_path(code)}) as started,
    ):
        authority = make_authority(home / "keys")
        port, *ports = free_ports(1 + len(nodes))
        superlink = f"{HOST}:{port}"
        link = started.start("superlink", superlink_command(authority, port))
        running = start_nodes(started, nodes, ports, superlink, authority, worker)
        link.wait_for_port(port)
        try:
            with ControlClient(superlink, authority.certificate) as control:
                join_nodes(control, running, authority)
                show(f"SuperLink on {superlink}, {len(nodes)} nodes (TLS and node keys)")
                run = control.start_run(bundle, settings)
                status = follow_run(control, run, running, records, show, on_round)
        except CoterieError:
            if link.ends_within(1.0):
                raise link.error() from None
            raise
    reason = status.details or "the log of the SuperLink may say why"
    show("the run is complete" if status.completed else f"the run {status.text}: {reason}")
    return 0 if status.completed else 1


def python_path(code: Path | None) -> dict[str, str]:
    """The environment in which Python imports from one more folder."""
    if code is None:
        return {}
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [before, str(code)]))}


def start_nodes(
    processes: Processes,
    nodes: Sequence[Path],
    ports: Sequence[int],
    superlink: str,
    authority: Authority,
    worker: Sequence[str],
) -> list[LocalNode]:
    """Make a key for each node and start its worker, each with its share of the cores."""
    threads, started, keys = thread_limits(len(nodes)), [], authority.folder
    for number, (node, port) in enumerate(zip(nodes, ports, strict=True), 1):
        name, ca = f"node-{number}", authority.certificate
        key = make_node_key(keys, name)
        commands = node_commands(node, superlink, ca, key.private, keys, name, port, worker=worker)
        started.append(LocalNode(processes, name, commands, key, threads))
    return started


def join_nodes(control: ControlClient, nodes: Sequence[LocalNode], authority: Authority) -> None:
    """Let the SuperLink accept the nodes' keys, and start the SuperNodes of ready workers."""
    sign_off = partial(deactivate_node, control.superlink, authority.certificate)
    for node in nodes:
        number = control.register_node(node.key.public)
        node.sign_off = partial(sign_off, node.key.private, number)
    for node in nodes:
        node.commands.wait_for_worker(node.worker)
        node.start_supernode()


def first_to_end(ended: Sequence[Child]) -> Child:
    """Which of some processes ended first: one that was killed, since the other then gives up."""
    return min(ended, key=lambda child: child.process.returncode >= 0)


@dataclass
class LocalNode:
    """The two processes of a node, which end together and are then started again."""

    processes: Processes
    name: str
    commands: NodeCommands
    key: NodeKey
    environment: Mapping[str, str]
    sign_off: Callable[[], object] = lambda: None  # tells the SuperLink that it is gone
    restarts: int = RESTARTS  # how many are left
    restart_at: float = 0.0  # when to start again; 0: it has not ended

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the worker; `watch` starts the SuperNode when the worker is ready."""
        self.commands.ready.unlink(missing_ok=True)
        self.supernode: Child | None = None
        name = f"{self.name}-worker"
        self.worker = self.processes.start(name, self.commands.worker, self.environment)

    def start_supernode(self) -> None:
        """Start the SuperNode of a worker that is ready."""
        self.pulse = NodePulse(self.commands.ready)
        self.supernode = self.processes.start(self.name, self.commands.supernode)

    def watch(self, show: Show) -> None:
        """Start what is to be started; to be called often."""
        if self.restart_at:
            if time.monotonic() >= self.restart_at and self.restarts:
                self.restart_at = 0.0
                self.restarts -= 1
                self.start()
            return
        children = [self.worker, *([self.supernode] if self.supernode else [])]
        ended = [child for child in children if not child.alive]
        why = "" if self.supernode is None else self.hangs()
        if ended:
            first = first_to_end(ended)
            why = f"{first.name} {first.ending}"
        if why:
            more = "is started again" if self.restarts else "is given up"
            show(f"{self.name} {more}: {why}")
            for child in children:
                self.processes.end(child)
            self.sign_off()
            self.restart_at = time.monotonic() + RESTART_SECONDS
        elif self.supernode is None and self.commands.ready.exists():
            self.start_supernode()

    def hangs(self) -> str:
        """What is wrong with its processes although they run, if anything."""
        self.pulse.look()
        return self.pulse.hangs()

    @property
    def lost(self) -> bool:
        """Whether it has ended and is not started again."""
        return self.restart_at > 0 and not self.restarts


def follow_run(
    control: ControlClient,
    run: int,
    nodes: Sequence[LocalNode],
    records: RoundRecords,
    show: Show,
    on_round: OnRound,
) -> RunStatus:
    """Wait for the end of a run; report its rounds, and keep its nodes alive."""
    asked_at, status = 0.0, None
    while True:
        if time.monotonic() - asked_at >= STATUS_SECONDS:
            status = control.run_status(run)
            asked_at = time.monotonic()
        for record in records.read_new():
            on_round(record)
        if status is not None and status.finished:
            return status
        for node in nodes:
            node.watch(show)
        if all(node.lost for node in nodes):
            raise CoterieError(f"all nodes have ended; {nodes[0].worker.error()}")
        time.sleep(ROUNDS_SECONDS)


class RoundRecords:
    """The records that a run adds to its rounds.jsonl from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = path.stat().st_size if path.exists() else 0

    def read_new(self) -> list[dict[str, Any]]:
        """Complete records since the last look; none where a resumed run has cut the file."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            self.position = file.seek(min(self.position, file.seek(0, os.SEEK_END)))
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self.position += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
