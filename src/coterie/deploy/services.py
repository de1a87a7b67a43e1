"""The services of a deployment that is spread over several machines, and their command lines.

`run_superlink` runs on the machine to which the others connect, `run_node` on each machine that
holds data. Both run until they are told to stop, and end all their processes. A service manager
starts them again when they fail (see docs/deploy.md).

A node is two processes: Flower's SuperNode, which fetches messages from the server, and a worker,
which has torch and the data loaded. The worker asks the SuperNode for messages and answers them:
there is no process per message, and no code that came over the network is run.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import SettingError
from coterie.deploy.flwr_internals import ControlClient, need_flower
from coterie.deploy.keys import Authority, ExpiryWarning, write_secret
from coterie.deploy.processes import (
    HOST,
    START_SECONDS,
    Child,
    Processes,
    Pulse,
    free_ports,
    ignore_signals,
    is_listening,
)
from coterie.deploy.server_upkeep import Keyring, UnfinishedRuns
from coterie.flower.unfinished import FOLDER

# Followed by NODE.toml, host:port of the SuperNode, the file of the secret, and the file to make
# when it is ready.
# -P: only what is installed is imported, never a file that lies where the command was given.
WORKER = (sys.executable, "-P", "-m", "coterie.deploy.worker")
SUPERNODE = (sys.executable, "-P", "-m", "coterie.deploy.supernode")
SUPERLINK = (sys.executable, "-P", "-m", "coterie.deploy.superlink")
GATE = (sys.executable, "-P", "-m", "coterie.deploy.gate")
POLL_SECONDS = 0.2  # between two looks at our processes
SILENT_SECONDS = 15.0  # after which processes that do not answer each other are started again
GATE_PORT, OWN_PORT = 9092, 8000  # of the first deployment on a machine
NODES_SECONDS = 2.0  # between two looks for the keys of new nodes

Show = Callable[[str], None]  # one line for the user
print_line = partial(print, flush=True)  # at once, also into a pipe


def run_node(
    node: Path,
    superlink: str,
    ca: Path | None,
    key: Path | None,
    *,
    show: Show = print_line,
    worker: Sequence[str] = WORKER,
) -> int:
    """Run a node until it is stopped: 0 after SIGTERM or Ctrl-C, 1 if one of its processes ended.

    node       its NODE.toml
    superlink  host:port of the SuperLink, as named in its certificate
    ca         the authority's certificate; None: without encryption
    key        the node's private key; None: without authentication
    worker     command of the worker, as `node_commands` has it

    The output of the processes goes to standard error. If one of them ends, the other is ended, and
    so are both if they have not answered each other for a while: a process that hangs takes part in
    nothing, and whoever started us starts both again.
    """
    need_flower()
    for path in filter(None, (node, ca, key)):
        if not path.is_file():
            raise SettingError(f"there is no file {path}")
    with contextlib.suppress(KeyboardInterrupt), temporary_folder() as home:
        (port,) = free_ports(1)
        commands = node_commands(node, superlink, ca, key, home, "node", port, worker=worker)
        with Processes(None, flower_home(home)) as processes:
            running = processes.start("worker", commands.worker)
            commands.wait_for_worker(running)
            supernode = processes.start("supernode", commands.supernode)
            show(f"node {node.stem}: asking {superlink} for work")
            pulse, owner = NodePulse(commands.ready), f" of node {node.stem}"
            return wait_for_end(
                [running, supernode], POLL_SECONDS, show, owner, pulse.look, pulse.hangs
            )
    show(f"node {node.stem} was stopped")
    return 0


def run_superlink(
    keys: Path,
    nodes: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 9092,
    own_port: int | None = None,
    unfinished: Path = Path("unfinished-runs"),
    show: Show = print_line,
) -> int:
    """Run the server of a deployment until stopped: 0 after SIGTERM or Ctrl-C, 1 if it failed.

    keys      folder of `make_authority`
    nodes     folder with the public keys (NAME.pub) of the nodes that may join; a file that is
              added later is seen within seconds
    host      where the gate (gate.py) listens to nodes, and on which `port`
    own_port  where the SuperLink itself listens, on this machine only: for `flwr run` and others;
              that of `default_own_port` if not given
    unfinished  folder where runs are noted until they have finished

    What the SuperLink has in memory is lost when it ends. Runs that had not finished then, or whose
    ServerApp was killed, are gone on with from their checkpoints.
    """
    need_flower()
    own_port = default_own_port(port) if own_port is None else own_port
    authority = Authority(keys)
    expiry = ExpiryWarning(authority)
    own_host = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # where we reach the gate ourselves
    check_server(authority, nodes, ((HOST, own_port), (own_host, port)))
    with (
        contextlib.suppress(KeyboardInterrupt),
        temporary_folder() as home,
        Processes(None, server_environment(home, unfinished)) as processes,
    ):
        link = processes.start("superlink", superlink_command(authority, own_port))
        link.wait_for_port(own_port)
        superlink, keyring = f"{HOST}:{own_port}", Keyring(nodes, show)
        with ControlClient(superlink, authority.certificate) as control:
            keyring.register(control)
            arguments = [host, str(port), str(own_port), str(keys.resolve())]
            gate = processes.start("gate", [*GATE, *arguments])
            gate.wait_for_port(port, own_host)
            show(f"nodes: {host}:{port}, users on this machine: {superlink}")
            runs = UnfinishedRuns(unfinished, str(home / "flwr"), show)

            def look() -> None:
                keyring.register(control)
                runs.go_on(control)
                expiry.warn(show)

            return wait_for_end([link, gate], NODES_SECONDS, show, meanwhile=look)
    show("the server was stopped")
    return 0


def check_server(authority: Authority, nodes: Path, ports: Iterable[tuple[str, int]]) -> None:
    """Refuse to start a server without its keys, or on ports that are taken."""
    for path in (authority.certificate, authority.server_certificate, authority.server_key):
        if not path.is_file():
            raise SettingError(f"there is no file {path}; `coterie deploy keys` makes it")
    if not nodes.is_dir():
        raise SettingError(f"there is no folder {nodes} with the public keys of nodes")
    for host, port in ports:
        if is_listening(host, port):
            raise SettingError(f"port {port} of {host} is taken by another program")


def wait_for_end(
    children: Sequence[Child],
    seconds: float,
    show: Show,
    owner: str = "",
    meanwhile: Callable[[], object] = lambda: None,
    hangs: Callable[[], str] = lambda: "",
) -> int:
    """Wait until one of the processes ends and say how; 1, which is then our exit code.

    `meanwhile` is called each time that we look at them, every so many `seconds`; `hangs` says what
    is wrong with them although they run, if anything.
    """
    while all(child.alive for child in children):
        meanwhile()
        if why := hangs():
            show(f"the processes{owner} are ended: {why}")
            return 1
        time.sleep(seconds)
    for child in children:
        if not child.alive:
            show(f"the {child.name}{owner} {child.ending}")
    return 1


class NodePulse:
    """Whether the two processes of a node answer each other; made when the SuperNode is started.

    The worker touches the file when its SuperNode has answered it. It may take a while until that
    happens for the first time, and then no long silence is normal, also not while it computes.
    """

    def __init__(self, ready: Path) -> None:
        self.pulse = Pulse(ready)
        self.before = self.pulse.seen

    def look(self) -> None:
        """Look at the file; to be called often."""
        self.pulse.look()

    def hangs(self) -> str:
        """That they do not answer each other, or nothing if they do."""
        begun = self.pulse.seen != self.before
        if self.pulse.silence < (SILENT_SECONDS if begun else START_SECONDS):
            return ""
        return f"worker and SuperNode have not answered each other for {self.pulse.silence:.0f} s"


def default_own_port(port: int) -> int:
    """Where a SuperLink listens whose gate is at `port`: another for each gate of a machine.

    >>> default_own_port(9092), default_own_port(9192), default_own_port(60000)
    (8000, 19192, 50000)
    """
    if port == GATE_PORT:
        return OWN_PORT
    return port + 10_000 if port <= 55_535 else port - 10_000


class NodeCommands(NamedTuple):
    """The commands of a node's two processes; the SuperNode starts when the worker is ready."""

    worker: list[str]
    supernode: list[str]
    ready: Path  # the worker makes this file when it is ready

    def wait_for_worker(self, worker: Child) -> None:
        """Wait until the worker is ready; an error if it never is."""
        worker.wait_for(self.ready.exists, f"make {self.ready}")


def superlink_command(authority: Authority, port: int) -> list[str]:
    """The command of a SuperLink that uses TLS and lets in registered nodes only."""
    return [
        *(*SUPERLINK, "--host", HOST, "--port", str(port)),
        "--disable-runtime-dependency-installation",
        *("--ssl-ca-certfile", str(authority.certificate)),
        *("--ssl-certfile", str(authority.server_certificate)),
        *("--ssl-keyfile", str(authority.server_key)),
        "--enable-supernode-auth",
    ]


def node_commands(
    node: Path,
    superlink: str,
    ca: Path | None,
    key: Path | None,
    home: Path,
    name: str,
    port: int,
    *,
    worker: Sequence[str] = WORKER,
) -> NodeCommands:
    """The commands of the two processes of a node: `WORKER NODE.toml HOST:PORT SECRET READY`, and
    a SuperNode that gives its messages at HOST:PORT to whoever knows the secret.

    node       its NODE.toml; messages have the absolute path in their `context.node_config["node"]`
    superlink  host:port of the SuperLink
    ca         the authority's certificate; None: without encryption
    key        the node's private key; None: without authentication
    home       folder for NAME.secret, which is made here, and NAME.ready
    port       of this machine, where the worker reaches the SuperNode
    """
    node, home = node.resolve(), home.resolve()
    secret, ready = home / f"{name}.secret", home / f"{name}.ready"
    write_secret(secret, secrets.token_bytes(32))
    supernode = [
        *(*SUPERNODE, "--superlink", superlink, "--host", HOST, "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--node-config", f"node={quote_path(node)}"),
    ]
    supernode += ["--insecure"] if ca is None else ["--root-certificates", str(ca.resolve())]
    if key is not None:
        supernode += ["--auth-supernode-private-key", str(key.resolve())]
    meeting = [f"{HOST}:{port}", str(secret), str(ready)]
    return NodeCommands([*worker, str(node), *meeting], supernode, ready)


def quote_path(path: Path) -> str:
    """A path as `--node-config` of Flower takes it: TOML, but without escaped quotes.

    >>> quote_path(Path("/data/my clinic/node.toml"))
    "'/data/my clinic/node.toml'"
    """
    text = str(path)
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return json.dumps(text, ensure_ascii=False)
    raise SettingError(f"a path with both kinds of quotes cannot be handed to Flower: {text}")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that only its owner can read, and that is removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="coterie-"))
    try:
        yield home
    finally:
        with ignore_signals():
            shutil.rmtree(home, ignore_errors=True)


def flower_home(home: Path) -> dict[str, str]:
    """The environment in which Flower writes its files to a folder."""
    (home / "tmp").mkdir()
    return {"FLWR_HOME": str(home / "flwr"), "TMPDIR": str(home / "tmp")}


def server_environment(home: Path, unfinished: Path) -> dict[str, str]:
    """The environment of a server's processes: Flower's files, and where runs are noted."""
    return {**flower_home(home), FOLDER: str(unfinished.resolve())}
