"""Flower's SuperNode with shorter waits, and one that never waits for what cannot come.

Like flwr_internals.py, this touches what Flower does not document, with a contract test for each
symbol. A SuperNode is busy with one message at a time: it fetches it, hands it to the worker and
waits for the reply. In Flower's, three things last for ever or for hours, and the node answers no
later run:

- The run ends (`flwr stop`, a killed ServerApp) while the message is fetched. The half of it that
  has come stays, and its task too; the worker takes that and waits two hours for the other half.
- The run ends, or the worker gives up, while the reply is waited for.
- The worker is ended while it sends the reply, of which a part never comes.

`BusyNode` is around Flower's two functions that do this. It leaves nothing of a message whose run
is over, and answers with an error in place of a worker that does not.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from coterie.deploy.flwr_internals import keep_steady_time, need_flower, shorten_fetch_waits

HEARTBEAT_SECONDS = 10.0  # the least that a SuperLink accepts
IDLE_SLEEP = 3  # what Flower's SuperNode sleeps when there was no message
PULL_SECONDS, PULL_SECONDS_MAX = 0.1, 3.0  # what ours sleeps instead
PULL_SHARE = 0.1  # of the time since the last message
PULL_TIMES = 5.0  # as long as the last request took
REPLY_SECONDS = 0.02  # between two looks for the worker's reply
TASK_SECONDS = 0.5  # between two looks at the worker's task, while its reply is waited for
RUN_SECONDS = 5.0  # between two questions whether the run goes on
ACTIVATE_SECONDS = 25.0  # for which a SuperNode asks to be let in, where it is refused
ACTIVATE_PAUSE = 1.0  # between two requests
NOT_FETCHED = "a message could not be fetched as a whole"
NOT_ANSWERED = "the worker of the node gave up a message without a reply"


class AdaptiveSleep:
    """Replaces the module `time` in the loop of Flower's SuperNode, which only calls `sleep`.

    `waiting` is called before each sleep in which it waits for the worker.
    """

    def __init__(self, waiting: Callable[[], object] = lambda: None) -> None:
        self.waiting = waiting
        self.busy_at = time.monotonic()  # when there was last something to do
        self.woke_at = self.busy_at

    def sleep(self, seconds: float) -> None:
        """Sleep for a time of our own; `seconds`, which is Flower's, tells what it waits for."""
        now = time.monotonic()
        if seconds < IDLE_SLEEP:
            self.busy_at = now
            self.waiting()
            time.sleep(REPLY_SECONDS)
        else:
            idle = PULL_SHARE * (now - self.busy_at)
            slow = PULL_TIMES * (now - self.woke_at)  # of a server with many nodes
            time.sleep(min(max(idle, slow, PULL_SECONDS), PULL_SECONDS_MAX))
        self.woke_at = time.monotonic()


class MessageDropped(Exception):
    """The message that a SuperNode was busy with is not waited for any more."""


class BusyNode:
    """The message that a SuperNode is busy with, around Flower's functions that handle it."""

    def __init__(self) -> None:
        from flwr.supernode import start_client_internal

        self.fetch_one = start_client_internal._pull_and_store_message
        self.push_all = start_client_internal._push_messages
        self.insert = start_client_internal._insert_message
        self.message: Any = None
        self.looked_at = self.asked_at = 0.0  # when we last looked at the task, asked for the run

    def fetch(
        self, *, state: Any, object_store: Any, receive: Any, get_run: Any, **others: Any
    ) -> Any:
        """Fetch a message; the id of its run, or None if there is nothing to reply."""
        self.state, self.store, self.get_run = state, object_store, get_run
        self.message = None

        def remember() -> Any:
            found = receive()
            self.message = None if found is None else found[0]
            return found

        words = {"state": state, "object_store": object_store, "get_run": get_run}
        run = self.fetch_one(**words, receive=remember, **others)
        if run is not None or self.message is None:
            return run
        self.drop(NOT_FETCHED)
        if self.run_is_over():
            return None
        self.reply_with_error(NOT_FETCHED)
        return self.message.metadata.run_id

    def push(self, **words: Any) -> None:
        """Wait for the reply to the message and send it, or drop it when none can come."""
        try:
            self.push_all(**words)
        except MessageDropped as error:
            self.drop(str(error))
        # What is left of it would be taken for the reply to the next one.
        self.drop("answered")

    def check(self) -> None:
        """End the wait for a reply that cannot come; called all the time while it is awaited."""
        now = time.monotonic()
        if now - self.looked_at < TASK_SECONDS:
            return
        self.looked_at = now
        ended = all(task.status.status == "finished" for task in self.tasks())
        if ended and self.replies():
            raise MessageDropped(NOT_ANSWERED)  # it is announced, and its parts never come
        if ended:
            self.reply_with_error(NOT_ANSWERED)
        elif now - self.asked_at >= RUN_SECONDS:
            self.asked_at = now
            if self.run_is_over():
                raise MessageDropped("its run is over")

    def run_is_over(self) -> bool:
        """Whether the SuperLink says that the message's run does not go on."""
        from flwr.supercore.run import RunNotRunningException

        try:
            self.get_run(self.message.metadata.run_id)
        except RunNotRunningException:
            return True
        return False

    def tasks(self) -> list[Any]:
        """The tasks of the worker for this run: that of the message, and those that ended."""
        return list(self.state.get_tasks(run_ids=[self.message.metadata.run_id]))

    def replies(self) -> list[str]:
        """The replies to the message that the worker has at least announced."""
        name, stored = self.message.metadata.message_id, dict(self.state.msg_store)
        return [
            each
            for each, entry in stored.items()
            if entry.message.metadata.reply_to_message_id == name
        ]

    def reply_with_error(self, reason: str) -> None:
        """Store a reply that says why there is no other."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode

        error = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=reason)
        self.insert(Message(error, reply_to=self.message), self.state, self.store)

    def drop(self, why: str) -> None:
        """Take the message from the worker and leave nothing of it."""
        from flwr.common.constant import SubStatus

        for task in self.tasks():
            if task.status.status != "finished":
                self.state.finish_task(task.task_id, SubStatus.FAILED, why)
        # Only now no more can come: without its task the worker is not let in.
        names = [self.message.metadata.message_id, *self.replies()]
        self.state.delete_messages(message_ids=names)
        self.store.delete_objects_in_run(self.message.metadata.run_id)


def ask_again(activate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A SuperNode's request to be let in, which is made again where it is refused.

    One that was killed counts as alive for 20 s, and until then its key is in use. The new one
    waits here, with its worker ready, in place of being started again and again.
    """
    import httpx

    def ask(client: Any, request: Any) -> Any:
        deadline = time.monotonic() + ACTIVATE_SECONDS
        while True:
            try:
                return activate(client, request)
            except httpx.HTTPStatusError as error:
                signed = error.response.status_code != httpx.codes.UNAUTHORIZED
                if not signed or time.monotonic() > deadline:
                    raise
            time.sleep(ACTIVATE_PAUSE)

    return ask


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """End the SuperNode when a thread of it ends with an error, as that of the heartbeats.

    Without heartbeats it would go on asking a server that takes it for dead.
    """
    threading.__excepthook__(failed)
    os.kill(os.getpid(), signal.SIGTERM)


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

    busy, fleet = BusyNode(), vars(fleet_http_connection)["FleetHttpClient"]
    for module, name, value in (
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (start_client_internal, "time", AdaptiveSleep(busy.check)),
        (start_client_internal, "_pull_and_store_message", busy.fetch),
        (start_client_internal, "_push_messages", busy.push),
        (fleet, "ActivateNode", ask_again(fleet.ActivateNode)),
    ):
        assert hasattr(module, name), f"this Flower has no {module.__name__}.{name}"
        setattr(module, name, value)
    threading.excepthook = end_with_thread
    shorten_fetch_waits()
    keep_steady_time()
    flower_supernode()
