"""Carry out the messages of a SuperNode in this process, one after another.

Flower starts a new process for every message: it imports Flower (2 s of a core), unpacks the app
that came with the run, and runs that app's ClientApp. A SuperNode with `--isolation process` leaves
this to somebody else. Here we do it: the process stays, so that nothing is imported twice, and it
runs the ClientApp that is *installed on the node*, never code that came over the network.

    execute(client, "127.0.0.1:9094", secret, ready)      # until the process is ended

`client` is a ClientApp, or any function of (message, context) that returns the reply.

`secret` is the content of the file that the SuperNode was given as `--superexec-auth-secret-file`.
Without it, whoever can connect to the SuperNode's port on this machine could take its messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError
from coterie.deploy.keys import need_flower
from coterie.deploy.waits import fetch_promptly

if TYPE_CHECKING:
    from flwr.app import Context, Message

POLL_SECONDS = 0.05  # between questions for work
PATIENT_SECONDS = 0.5  # between questions while nobody answers
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

log = logging.getLogger("coterie.node")

Handle = Callable[["Message", "Context"], "Message"]


def execute(
    handle: Handle, supernode: str, secret: bytes | None = None, ready: Path | None = None
) -> None:
    """Ask the SuperNode at `supernode` (host:port on this machine) for messages and answer them.

    The file `ready` is made before the first question, so that others know that we are there.

    An exception of `handle` becomes an error reply, as Flower's own ClientApp process sends it, and
    the next message is waited for. A SuperNode that does not answer (yet, or any more) is asked
    again. CoterieError where it refuses us, or where a reply could not be handed over: it waits for
    that reply, and for nothing else, until it is started again.
    """
    need_flower()
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec")
    ]
    if secret is not None:
        interceptors.append(
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=frozenset({ACQUIRE})
            )
        )
    client = RuntimeHttpClient.from_server_address(
        server_address=supernode, insecure=True, root_certificates=None, interceptors=interceptors
    )
    fetch_promptly()
    request = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    if ready is not None:
        ready.touch()
    try:
        while True:
            try:
                found = client.AcquireTask(request)
            except httpx.TransportError:
                time.sleep(PATIENT_SECONDS)
                continue
            except httpx.HTTPStatusError as error:
                raise CoterieError(
                    f"the SuperNode {supernode} does not let us work: {error.response.text}"
                ) from error
            if not (found.HasField("task") and found.token):
                time.sleep(POLL_SECONDS)
                continue
            try:
                answer(handle, supernode, found.token)
            except Exception as error:
                raise CoterieError(
                    f"a message could not be answered: {type(error).__name__}: {error}"
                ) from error
    finally:
        client.close()


def answer(handle: Handle, supernode: str, token: str) -> None:
    """Fetch one message, let it be handled, and hand the reply to the SuperNode."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    client = RuntimeHttpClient.from_server_address(
        server_address=supernode,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    alive = HeartbeatSender(make_task_heartbeat_fn_http(client))
    alive.start()  # a task without heartbeats is given up by the SuperNode
    try:
        message, context, _, _ = pull_task_input(client)
        try:
            reply = handle(message, context)
            ending, details = SubStatus.COMPLETED, ""
        except Exception as error:
            ending, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
            log.exception("the client step failed")
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code=code, reason=details), reply_to=message)
        push_message(client, reply, context)
        alive.stop()  # before the task ends: a heartbeat of one that has ended would end us
        push_task_output(client, context, ending, details)
    finally:
        if alive.is_running:
            alive.stop()
        client.close()
