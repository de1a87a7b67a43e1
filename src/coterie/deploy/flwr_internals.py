"""All that we use of Flower's insides, which Flower does not document and may change.

`flwr.app`, `flwr.clientapp` and `flwr.serverapp` are documented and imported wherever they are
needed. Everything else of Flower is imported here, in flwr_worker.py and in flwr_supernode.py, and
nowhere else, inside the function that needs it, since Flower is an extra.
tests/deploy/test_flwr_internals.py has one test for each symbol that says what breaks without it. A
new version of Flower is a matter of these files and that one.

    ControlClient        registers nodes, starts runs and asks for their status
    node_keys            tells which node has which key
    build_bundle         makes the file in which Flower sends an app
    keep_steady_time     lets Flower read a clock that steps do not move
    run_superlink_process  runs Flower's SuperLink with it
    deactivate_node      tells the SuperLink that a SuperNode is gone
    shorten_fetch_waits  fetches parts of messages as soon as they have arrived

What it buys: a round of 1.5 s in place of 6.2 s, and no process for every message (docs/deploy.md).
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from coterie.core.errors import CoterieError, SettingError
from coterie.deploy.steady_clock import SteadyClock

FLEET_PATH = "/v1/fleet/"  # where a SuperLink answers its nodes
# Settings of Flower's processes, unless the user has set them: no telemetry, no search for updates,
# and 0.1 s in place of 1 s between two looks for a new task.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
FETCH_SECONDS, FETCH_SECONDS_MAX = 0.05, 2.0  # wait for a part of a message, doubled each time


def need_flower() -> None:
    """Refuse, in one sentence, to go on without the extra `flower`."""
    try:
        import cryptography  # noqa: F401
        import flwr  # noqa: F401
        import psutil  # noqa: F401
    except ImportError as error:
        raise SettingError(
            "a deployment needs Flower, which is not installed: pip install 'coterie[flower]'"
        ) from error


class RunStatus(NamedTuple):
    """How far a run is."""

    finished: bool
    completed: bool  # finished without an error
    text: str  # as in "running" or "failed"
    stopped: bool  # finished because somebody asked for it
    details: str  # the reason, where it failed


class ControlClient:
    """A connection to the Control API of a SuperLink, which is for its users.

    It does what `flwr supernode register`, `flwr run` and `flwr list` do. Flower's command line
    takes seconds to start and reads its connections from a file in the home folder.

    superlink  host:port
    ca         the authority's certificate; None: without encryption
    """

    def __init__(self, superlink: str, ca: Path | None) -> None:
        need_flower()
        from flwr.supercore.control import ControlHttpClient

        self.superlink = superlink
        self.client = open_connection(ControlHttpClient, superlink, ca, "coterie")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def register_node(self, public_key: Path) -> int:
        """Let the node with this key join; the id that the SuperLink gave it."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        try:
            key = serialization.load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SettingError(f"{public_key} is not a public key of a node") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SettingError(f"{public_key} is not a public key of a node: it must be ECDSA")
        with self.explain_errors(f"register {public_key.name}"):
            request = RegisterNodeRequest(public_key=public_key_to_bytes(key))
            return int(self.client.RegisterNode(request).node_id)

    def start_run(self, bundle: bytes, settings: Mapping[str, str | bool | int | float]) -> int:
        """Start a run of an app (see `build_bundle`); the id of the run.

        `settings` replace those that the app has itself.
        """
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        config = user_config_to_proto(dict(settings))
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=config)
        with self.explain_errors("start the run"):
            answer = self.client.StartRun(request)
        if not answer.HasField("run_id"):
            raise CoterieError(f"the SuperLink did not start the run: {answer.note or 'no reason'}")
        return int(answer.run_id)

    def run_status(self, run: int) -> RunStatus:
        """How far a run is."""
        from flwr.common.constant import Status, SubStatus
        from flwr.proto.control_pb2 import ListRunsRequest

        with self.explain_errors("ask for the run"):
            answer = self.client.ListRuns(ListRunsRequest(run_id=run))
        found = answer.run_dict[run].status
        return RunStatus(
            found.status == Status.FINISHED,
            found.sub_status == SubStatus.COMPLETED,
            found.sub_status or found.status,
            found.sub_status == SubStatus.STOPPED,
            found.details.removeprefix("ServerApp failed with exception: "),
        )

    def stop_run(self, run: int) -> None:
        """Let a run end, as `flwr stop` does: nodes drop its messages."""
        from flwr.proto.control_pb2 import StopRunRequest

        with self.explain_errors("stop the run"):
            self.client.StopRun(StopRunRequest(run_id=run))

    @contextlib.contextmanager
    def explain_errors(self, action: str) -> Iterator[None]:
        """Raise one sentence in place of the errors of the connection."""
        import httpx

        link = f"the SuperLink {self.superlink}"
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise CoterieError(f"{link} refused to {action}: {error.response.text}") from error
        except httpx.HTTPError as error:
            raise CoterieError(f"cannot {action}: {link} does not answer ({error})") from error


def key_fingerprint(public_key: Any) -> str:
    """The fingerprint of a node's public key, as `ssh-keygen -lf NAME.pub` shows it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    text = public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def node_keys(grid: Any) -> dict[int, str]:
    """The fingerprints of the keys of all nodes that a SuperLink knows, by its ids for them.

    A ServerApp is told ids only, so its own connection's SuperLink is asked as `flwr supernode
    list` does. There are none where nodes need no keys, or behind another grid.
    """
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key
    from flwr.superlink.grid.http_grid import HttpGrid

    if not isinstance(grid, HttpGrid):
        return {}
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    inside = vars(grid)
    client = ControlHttpClient.from_server_address(
        server_address=inside["_addr"],
        insecure=inside["_insecure"],
        root_certificates=inside["_cert"],
        interceptors=[RuntimeVersionHttpInterceptor(component_name="coterie")],
    )
    with contextlib.closing(client):
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    return {
        int(node.node_id): key_fingerprint(bytes_to_public_key(node.public_key))
        for node in nodes
        if node.public_key
    }


def build_bundle(app: Path) -> bytes:
    """Make the one file in which Flower sends the folder of an app (a "FAB")."""
    need_flower()
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise SettingError(f"{app} is not the folder of an app: it has no pyproject.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        try:
            return build_fab_from_disk(app)
        except (ValueError, OSError) as error:
            raise SettingError(f"{app} is not an app that Flower can take: {error}") from error


def deactivate_node(superlink: str, ca: Path, key: Path, node: int) -> None:
    """Tell the SuperLink that a SuperNode which was killed is gone, as it does itself if it can.

    The server then waits no more for its replies, and lets it in again at once. Nothing happens if
    it did not count as alive, or the SuperLink does not answer.

    superlink  host:port
    ca         the authority's certificate
    key        the node's private key
    node       the id that the SuperLink gave it
    """
    need_flower()
    import httpx
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{key} is not the private key of a node")
    signature = NodeAuthHttpInterceptor(private, private.public_key())
    with (
        open_connection(FleetHttpClient, superlink, ca, "SuperNode", signature) as client,
        contextlib.suppress(httpx.HTTPError),
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def shorten_fetch_waits(give_up_seconds: float | None = None) -> None:
    """Let this process ask sooner for parts of messages that have not arrived yet.

    A message is announced before all its parts have arrived. Flower asks for a missing part again
    after 1 s, then 2, 4, 8 and 10 s: most of a round would be such waits.

    After `give_up_seconds` a message is given up whose sender died while it was sending. None
    leaves that to Flower: when the SuperLink has seen no part of it for 3 minutes.
    """
    from flwr.supercore.inflatable import inflatable_utils as utils

    new = {
        "initial_backoff": FETCH_SECONDS,
        "backoff_cap": FETCH_SECONDS_MAX,
        "max_tries_per_object": None,
    }
    if give_up_seconds is not None:
        new["max_time"] = give_up_seconds
    for fetch in (utils.pull_objects, utils.pull_and_inflate_object_from_tree):
        defaults = fetch.__kwdefaults__ or {}
        assert set(new) <= set(defaults), f"this Flower's {fetch.__name__} has other waits"
        defaults.update(new)


def open_connection(
    kind: Any, server: str, ca: Path | None, component: str, *interceptors: Any
) -> Any:
    """A client of one of Flower's kinds for a server, with the authority's certificate to trust.

    It adds our version of Flower to each request, for servers to compare with theirs.
    """
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return kind.from_server_address(
        server_address=server,
        insecure=ca is None,
        root_certificates=None if ca is None else ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *interceptors],
    )


def keep_steady_time() -> None:
    """Let Flower, in this process, read a steady clock (steady_clock.py)."""
    from flwr.supercore import date

    home = os.environ.get("FLWR_HOME")
    clock = SteadyClock(Path(home) / "clock" if home else None)

    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(clock.time(), tz)

    steady = SimpleNamespace(datetime=SimpleNamespace(now=now), UTC=datetime.UTC)
    vars(date)["datetime"] = steady


def run_superlink_process() -> None:
    """Run Flower's SuperLink, with the options of this process, until it is told to stop."""
    need_flower()
    from flwr.superlink.cli import flower_superlink

    if home := os.environ.get("FLWR_HOME"):
        Path(home).mkdir(parents=True, exist_ok=True)
    keep_steady_time()
    flower_superlink()
