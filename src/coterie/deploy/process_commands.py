"""The command lines of a deployment's processes, and the folder for their temporary files.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import SettingError
from coterie.deploy.keys import Authority, write_secret
from coterie.deploy.processes import ignore_signals

HOST = "127.0.0.1"
# Followed by NODE.toml, host:port of the SuperNode, the file of the secret, and the file to make
# when it is ready.
WORKER = (sys.executable, "-m", "coterie.deploy.worker")
SUPERNODE = (sys.executable, "-m", "coterie.deploy.supernode")
GATE = (sys.executable, "-m", "coterie.deploy.gate")
START_SECONDS = 120.0  # for a process to start; torch and data take a while on a busy machine


class NodeCommands(NamedTuple):
    """The commands of a node's two processes; the SuperNode starts when the worker is ready."""

    worker: list[str]
    supernode: list[str]
    ready: Path  # the worker makes this file when it is ready


def superlink_command(authority: Authority, *, host: str = HOST, port: int) -> list[str]:
    """The command of a SuperLink that uses TLS and lets in registered nodes only."""
    return [
        *("flower-superlink", "--host", host, "--port", str(port)),
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
