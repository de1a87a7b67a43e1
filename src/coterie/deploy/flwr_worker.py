"""The worker of a node: answers the messages of its SuperNode, all in one process.

Like flwr_internals.py, this touches what Flower does not document, with a contract test for each
symbol.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import CoterieError
from coterie.deploy.flwr_internals import (
    keep_steady_time,
    need_flower,
    open_connection,
    shorten_fetch_waits,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message

ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
ACQUIRE_SECONDS = 0.05  # between two requests for work
TASK_HEARTBEAT_SECONDS = 10.0  # makes one every 4 s
RECONNECT_SECONDS = 0.5  # between two requests while the SuperNode does not answer

log = logging.getLogger("coterie.node")

Handle = Callable[["Message", "Context"], "Message"]


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
    SuperNode that does not answer (yet, or any more) is asked again. A message that cannot be
    fetched, or whose reply cannot be sent, is dropped: its run is over, or the SuperNode replies
    in our place. CoterieError if the SuperNode refuses us, or if a run ends while its step is
    computed: nothing else would stop that.

    `ready` is touched whenever the SuperNode has answered us: who watches it sees that both live.
    """
    need_flower()
    from flwr.supercore import heartbeat
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    protected = frozenset({ACQUIRE_TASK})
    signature = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)
    shorten_fetch_waits()
    keep_steady_time()
    vars(heartbeat)["HEARTBEAT_DEFAULT_INTERVAL"] = TASK_HEARTBEAT_SECONDS
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so a script starts what is in its `&`
        signal.signal(signal.SIGINT, signal.default_int_handler)  # by which a step is ended
    client = open_connection(RuntimeHttpClient, supernode, None, "SuperExec", signature)
    with contextlib.closing(client):
        ready.touch()
        while True:
            token = wait_for_task(client, supernode, ready)
            try:
                answer_message(handle, supernode, token, ready)
            except CoterieError:
                raise
            except Exception as error:
                log.warning("a message is dropped: %s: %s", type(error).__name__, error)


def error_text(error: Exception) -> str:
    """An error as the server is told of it: a sentence of coterie as it is, others by their kind.

    >>> error_text(CoterieError("`k` must be at least 1, got 0")), error_text(ValueError("no"))
    ('`k` must be at least 1, got 0', 'ValueError: no')
    """
    return str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"


def wait_for_task(client: Any, supernode: str, ready: Path) -> str:
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
        ready.touch()
        if found.HasField("task") and found.token:
            return str(found.token)
        time.sleep(ACQUIRE_SECONDS)


def answer_message(handle: Handle, supernode: str, token: str, ready: Path) -> None:
    """Fetch the message of one task from a SuperNode and send it the reply."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    access = RuntimeTokenHttpInterceptor(token)
    client = open_connection(RuntimeHttpClient, supernode, None, "flwr-clientapp", access)
    task = TaskPulse(client, ready)
    heartbeats = HeartbeatSender(task.beat)
    heartbeats.start()  # the SuperNode gives up a task without heartbeats
    context, ending, details = None, SubStatus.FAILED, "not answered"
    try:
        message, context, _, _ = pull_task_input(client)
        try:
            with task.computing():
                reply = handle(message, context)
            result, told = SubStatus.COMPLETED, ""
        except Exception as error:
            result, told = SubStatus.FAILED, error_text(error)
            log.exception("the client step failed")
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code=code, reason=told), reply_to=message)
        push_message(client, reply, context)
        ending, details = result, told
    except KeyboardInterrupt:
        if task.over:
            raise CoterieError("a run ended while a step of it was computed") from None
        raise
    finally:
        if heartbeats.is_running:
            heartbeats.stop()
        push_task_output(client, context, ending, details)
        client.close()


class TaskPulse:
    """The heartbeats of a worker's task, and what becomes of it when the SuperNode has dropped it.

    over  whether the SuperNode has said so
    """

    def __init__(self, client: Any, ready: Path) -> None:
        self.client, self.ready = client, ready
        self.over = False
        self.busy = False

    def beat(self) -> bool:
        """Tell the SuperNode that we live; False if it does not answer."""
        import httpx
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        try:
            alive = self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:  # without its task the worker is not let in
            alive = False
        self.ready.touch()
        if not alive and self.busy and not self.over:
            self.over = True
            # To the thread that computes, so that waiting is interrupted as well.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return True

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Inside, the end of the task interrupts us: the node is then started again."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
