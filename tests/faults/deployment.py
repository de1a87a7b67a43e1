"""A deployment on this machine as a nemesis wants it: services that are started again, and relays.

A server (`coterie deploy superlink`) and nodes (`coterie deploy node`) are started as a service
manager does it, each node behind a relay of its own. What is killed or stopped is one of the
processes that these have started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import ENVIRONMENT, ControlClient, build_bundle
from coterie.deploy.keys import make_authority, make_node_key
from coterie.deploy.processes import MARK, find_marked, free_ports
from coterie.flower.app import write_app
from tests.faults.relay import Relay

RESTART_SECONDS = 1.0  # of a service that has ended
COTERIE = (sys.executable, "-P", "-m", "coterie")
SMALL = ["rotated-digits", "clients=6", "samples=20", "hidden=8", "steps=2", "evaluate=1000"]
WORKLOADS = {
    "ifca": ["ifca", *SMALL, "k=2", "start=random"],
    "ditto": ["ditto", *SMALL],
    "fpfc": ["fpfc", *SMALL, "lam=0.5"],
}


class Service:
    """A process that is started again when it has ended."""

    def __init__(self, words: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.words, self.environment, self.log = words, environment, log
        self.process: subprocess.Popen[bytes] | None = None
        self.ended_at = 0.0
        self.starts = 0
        self.watch()

    def watch(self) -> None:
        """Start it if it does not run; to be called often."""
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None and not self.ended_at:
            self.ended_at = time.monotonic()
        if not self.ended_at or time.monotonic() - self.ended_at > RESTART_SECONDS:
            self.ended_at, self.starts = 0.0, self.starts + 1
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    self.words, stdout=log, stderr=log, env=self.environment, cwd=self.log.parent
                )


class Deployment:
    """A server and three nodes; `server_environment` is added to that of the server."""

    def __init__(
        self, folder: Path, seed: int, server_environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.mark = folder, f"faults{os.getpid()}x{time.time_ns()}"
        environment = {**os.environ, **ENVIRONMENT, MARK: self.mark, "PYTHONUNBUFFERED": "1"}
        environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.made("tmp"))}
        authority = make_authority(folder / "tls")
        self.ca, self.keys = authority.certificate, self.made("nodes")
        port, own_port = free_ports(2)
        self.superlink = f"127.0.0.1:{own_port}"
        words = [*COTERIE, "deploy", "superlink", str(authority.folder), str(self.keys)]
        words += ["--host", "127.0.0.1", "--port", str(port), "--own-port", str(own_port)]
        words += ["--unfinished", str(folder / "unfinished")]
        server = {**environment, **(server_environment or {})}
        self.server = Service(words, server, folder / "server.log")
        self.relays = [Relay(("127.0.0.1", port), seed * 10 + i) for i in range(3)]
        self.nodes = [self._node(i, relay, environment) for i, relay in enumerate(self.relays, 1)]

    def made(self, name: str) -> Path:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def _node(self, number: int, relay: Relay, environment: Mapping[str, str]) -> Service:
        name = f"node-{number}"
        key = make_node_key(self.made("private"), name)
        (self.keys / f"{name}.pub").write_bytes(key.public.read_bytes())
        file = self.made(name) / f"{name}.toml"
        file.write_text(f'share = "{number}/3"\nmemory = "memory"\n')
        words = [*COTERIE, "deploy", "node", str(file), "--ca", str(self.ca)]
        words += ["--key", str(key.private), "--superlink", f"127.0.0.1:{relay.port}"]
        return Service(words, environment, self.folder / f"{name}.log")

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        for relay in self.relays:
            relay.close()
        deadline = time.monotonic() + 30
        while (alive := find_marked(self.mark)) and time.monotonic() < deadline:
            self.signal_all(alive, signal.SIGKILL)
            time.sleep(0.1)
        for service in (self.server, *self.nodes):
            if service.process is not None:
                service.process.wait()

    def watch(self) -> None:
        """Start again what has ended."""
        for service in (self.server, *self.nodes):
            service.watch()

    def wait(self, until: Callable[[], object], seconds: float) -> bool:
        """Watch until something holds; whether it did in time."""
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                return False
            self.watch()
            time.sleep(0.1)
        return True

    def processes(self, *words: str) -> list[int]:
        """The processes whose commands have all of these words in them."""
        found = []
        for pid in find_marked(self.mark):
            with contextlib.suppress(psutil.Error):
                command = " ".join(psutil.Process(pid).cmdline())
                if all(word in command for word in words):
                    found.append(pid)
        return found

    def signal_all(self, pids: Any, number: signal.Signals) -> int:
        """Send a signal to processes, which may have ended; to how many it was sent."""
        sent = 0
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                sent += 1
        return sent

    @contextlib.contextmanager
    def control(self) -> Iterator[ControlClient]:
        with ControlClient(self.superlink, self.ca) as control:
            yield control

    def nodes_online(self) -> int:
        """How many nodes the server has."""
        from flwr.proto.control_pb2 import ListNodesRequest

        try:
            with self.control() as control, control.explain_errors("list"):
                nodes = control.client.ListNodes(ListNodesRequest()).nodes_info
        except CoterieError:
            return 0
        return sum(node.status == "online" for node in nodes)

    def start(self, workload: str, rounds: int, out: Path, **settings: Any) -> int:
        """Start a run."""
        app = self.folder / f"app-{workload}-{rounds}"
        if not app.exists():
            write_app(app, [*WORKLOADS[workload], f"rounds={rounds}", "checkpoint=1"])
        given = {"out": str(out), "nodes": 3, "timeout": 120.0, "resume": False, **settings}
        with self.control() as control:
            return control.start_run(build_bundle(app), given)

    def status(self, run: int) -> Any:
        with self.control() as control:
            return control.run_status(run)


def records(out: Path) -> list[dict[str, Any]]:
    """The rounds of a run so far."""
    try:
        lines = (out / "rounds.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]
    except (OSError, ValueError):
        return []


def final_state(out: Path) -> dict[str, torch.Tensor]:
    """The tensors of a run's last state."""
    found = load_file(out / "checkpoint.safetensors")
    return {name: value for name, value in found.items() if value.is_floating_point()}


def same_bits(one: Path, other: Path) -> bool:
    """Whether two runs ended in the same state."""
    first, second = final_state(one), final_state(other)
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )
