"""All that we use of Flower's insides, which Flower does not document and may change.

`flwr.app`, `flwr.clientapp` and `flwr.serverapp` are documented and imported wherever they are
needed. Everything else of Flower is imported here and nowhere else, inside the function that needs
it, since Flower is an extra. tests/deploy/test_flwr_internals.py has one test for each symbol that
says what breaks without it. A new version of Flower is a matter of this file and that one.

    ControlClient        registers nodes, starts runs and asks for their status
    build_bundle         makes the file in which Flower sends an app
    answer_messages      answers the messages of a SuperNode, all in one process
    run_supernode        runs Flower's SuperNode with shorter waits
    deactivate_node      tells the SuperLink that a SuperNode is gone
    shorten_fetch_waits  fetches parts of messages as soon as they have arrived

What it buys: a round of 1.5 s in place of 6.2 s, and no process for every message (docs/deploy.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from coterie.core.errors import CoterieError, SettingError

if TYPE_CHECKING:
    from flwr.app import Context, Message

FLEET_PATH = "/v1/fleet/"  # where a SuperLink answers its nodes
# Settings of Flower's processes, unless the user has set them: no telemetry, no search for updates,
# and 0.1 s in place of 1 s between two looks for a new task.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
FETCH_SECONDS, FETCH_SECONDS_MAX = 0.05, 2.0  # wait for a part of a message, doubled each time
ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
ACQUIRE_SECONDS = 0.05  # between two requests for work
RECONNECT_SECONDS = 0.5  # between two requests while the SuperNode does not answer
HEARTBEAT_SECONDS = 10.0  # the least that a SuperLink accepts
IDLE_SLEEP = 3  # what Flower's SuperNode sleeps when there was no message
PULL_SECONDS, PULL_SECONDS_MAX = 0.1, 3.0  # what ours sleeps instead
PULL_SHARE = 0.1  # of the time since the last message
PULL_TIMES = 5.0  # as long as the last request took
REPLY_SECONDS = 0.02  # between two looks for the worker's reply

log = logging.getLogger("coterie.node")

Handle = Callable[["Message", "Context"], "Message"]


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
            found.details.removeprefix("ServerApp failed with exception: "),
        )

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


def answer_messages(handle: Handle, supernode: str, secret: bytes, ready: Path) -> None:
    """Ask a SuperNode for messages and answer them one after another, until the process is ended.

    Flower starts a new process for every message: it imports Flower (2 s of a core), unpacks the
    app that came with the run, and runs that app's ClientApp. A SuperNode with `--isolation
    process` leaves this to another process. Ours stays, so that nothing is imported twice, and runs
    the code that is *installed on the node*, never code that came over the network.

    handle     a ClientApp, or any function of (message, context) that returns the reply
    supernode  host:port on this machine
    secret     content of the SuperNode's `--superexec-auth-secret-file`. Without it, whoever can
               connect to the SuperNode's port could take its messages
    ready      file that is made before the first request

    An exception of `handle` becomes an error reply, as Flower's own ClientApp process sends it. A
    SuperNode that does not answer (yet, or any more) is asked again. CoterieError if it refuses us,
    or if a reply could not be sent: it waits for that reply until it is started again.
    """
    need_flower()
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    protected = frozenset({ACQUIRE_TASK})
    signature = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)
    shorten_fetch_waits()
    client = open_connection(RuntimeHttpClient, supernode, None, "SuperExec", signature)
    with contextlib.closing(client):
        ready.touch()
        while True:
            token = wait_for_task(client, supernode)
            try:
                answer_message(handle, supernode, token)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise CoterieError(f"a message could not be answered: {reason}") from error


def error_text(error: Exception) -> str:
    """An error as the server is told of it: a sentence of coterie as it is, others by their kind.

    >>> error_text(CoterieError("`k` must be at least 1, got 0")), error_text(ValueError("no"))
    ('`k` must be at least 1, got 0', 'ValueError: no')
    """
    return str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"


def wait_for_task(client: Any, supernode: str) -> str:
    """Wait until a SuperNode has a task for us; the token that gives access to it."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    request = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    while True:
        try:
            found = client.AcquireTask(request)
        except httpx.TransportError:
            time.sleep(RECONNECT_SECONDS)
            continue
        except httpx.HTTPStatusError as error:
            raise CoterieError(
                f"the SuperNode {supernode} does not let us work: {error.response.text}"
            ) from error
        if found.HasField("task") and found.token:
            return str(found.token)
        time.sleep(ACQUIRE_SECONDS)


def answer_message(handle: Handle, supernode: str, token: str) -> None:
    """Fetch the message of one task from a SuperNode and send it the reply."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    access = RuntimeTokenHttpInterceptor(token)
    client = open_connection(RuntimeHttpClient, supernode, None, "flwr-clientapp", access)
    heartbeats = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeats.start()  # the SuperNode gives up a task without heartbeats
    try:
        message, context, _, _ = pull_task_input(client)
        try:
            reply = handle(message, context)
            ending, details = SubStatus.COMPLETED, ""
        except Exception as error:
            ending, details = SubStatus.FAILED, error_text(error)
            log.exception("the client step failed")
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code=code, reason=details), reply_to=message)
        push_message(client, reply, context)
        heartbeats.stop()  # a heartbeat after the end of the task would end this process
        push_task_output(client, context, ending, details)
    finally:
        if heartbeats.is_running:
            heartbeats.stop()
        client.close()


class AdaptiveSleep:
    """Replaces the module `time` in the loop of Flower's SuperNode, which only calls `sleep`."""

    def __init__(self) -> None:
        self.busy_at = time.monotonic()  # when there was last something to do
        self.woke_at = self.busy_at

    def sleep(self, seconds: float) -> None:
        """Sleep for a time of our own; `seconds`, which is Flower's, tells what it waits for."""
        now = time.monotonic()
        if seconds < IDLE_SLEEP:
            self.busy_at = now
            time.sleep(REPLY_SECONDS)
        else:
            idle = PULL_SHARE * (now - self.busy_at)
            slow = PULL_TIMES * (now - self.woke_at)  # of a server with many nodes
            time.sleep(min(max(idle, slow, PULL_SECONDS), PULL_SECONDS_MAX))
        self.woke_at = time.monotonic()


def run_supernode() -> None:
    """Run Flower's SuperNode, with the options of this process, until it is told to stop.

    Three waits are fixed in Flower, and we change them for this process:

    - A SuperNode promises a heartbeat every 30 s and counts as alive until it has missed two: for
      up to a minute the server waits for the replies of one that died, and does not let it in
      again, since its key is in use. Ours promises one every 10 s, which makes that 20 s.
    - Where there was no message, it asks again after 3 s, and rounds are no shorter. Ours asks
      sooner while messages come, and less and less often while none do, or while the server takes
      long to answer: many nodes that ask often would keep it from its work.
    - It looks for the worker's reply every 0.5 s. That costs little, so ours looks more often.
    """
    need_flower()
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    for module, name, value in (
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (start_client_internal, "time", AdaptiveSleep()),
    ):
        assert hasattr(module, name), f"this Flower has no {module.__name__}.{name}"
        setattr(module, name, value)
    shorten_fetch_waits()
    flower_supernode()


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
