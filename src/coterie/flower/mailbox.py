"""Messages to nodes and the replies to them, over Flower's grid."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.flower.punctuality import Punctuality, now
from coterie.flower.replies import reported_seconds
from coterie.flower.wire import BadPacket, Packet, decode_packet, encode_packet

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# What the record of a round says of the network: clients whose reply was not accepted or did not
# come, and where the seconds went.
NO_COUNTS = {"refused": 0, "silent": 0, "network": 0.0, "startup": 0.0, "compute": 0.0}
EXTRA_SECONDS = 60.0  # that a message may still be fetched after nobody waits for its reply


@dataclass(frozen=True)
class Pace:
    """How often a server looks, in seconds."""

    poll: float = 0.05  # between two looks for replies
    online: float = 2.0  # between two looks for nodes that are online


class Sent(NamedTuple):
    """A message that is under way."""

    node: int
    clients: Tensor  # [a] whom it is about
    label: str  # what is asked for
    at: float  # when it was sent


class Mailbox:
    """Sends messages, one to a node, and takes in replies.

    `counts` is what happened since `notes` was last asked, `missing` who did not take part since
    then, and why; `failure` is how a node last failed. Messages that nobody waits for any more are
    `overdue`: a reply to them says that their node is back.
    """

    def __init__(self, grid: Grid, pace: Pace) -> None:
        self.grid, self.pace = grid, pace
        self.counts: dict[str, float] = dict(NO_COUNTS)
        self.missing: dict[str, str] = {}
        self.failure = ""
        self.common: dict[str, Any] = {}  # goes with every message
        self.punctuality = Punctuality()
        self.overdue: dict[str, Sent] = {}

    def send(
        self, packets: dict[int, Packet], clients: dict[int, Tensor], timeout: float, label: str
    ) -> dict[str, Sent]:
        """One message to each node, about some of its clients; the messages by name."""
        from flwr.app import Message

        messages = [
            Message(encode_packet(whole), node, "query", ttl=timeout + EXTRA_SECONDS)
            for node, whole in (
                (node, packet._replace(header={**self.common, **packet.header}))
                for node, packet in packets.items()
            )
        ]
        nobody, at = torch.arange(0), now()
        sent = [Sent(node, clients.get(node, nobody), label, at) for node in packets]
        return dict(zip(self.grid.push_messages(messages), sent, strict=True))

    def receive(
        self,
        waiting: dict[str, Sent],
        accept: Callable[[Sent, Packet], Any],
        timeout: float,
        awaited: Callable[[], bool],
    ) -> None:
        """Take in replies to the messages `waiting` while some are `awaited`, or until time is up.

        Messages that are answered are taken out of `waiting`. `accept` may raise BadPacket.
        """
        began = now()
        slowest = [0.0, 0.0]
        while awaited() and now() - began < timeout:
            slowest = max(slowest, self.collect(waiting, accept), key=sum)
            if awaited():
                time.sleep(self.pace.poll)
        self.counts["network"] += now() - began - sum(slowest)
        self.counts["compute"] += slowest[0]
        self.counts["startup"] += slowest[1]

    def collect(
        self, waiting: dict[str, Sent], accept: Callable[[Sent, Packet], Any]
    ) -> list[float]:
        """Take in the replies that are there: how long the slowest node says that it took."""
        slowest = [0.0, 0.0]
        for reply in self.grid.pull_messages([*waiting, *self.overdue]):
            name = reply.metadata.reply_to_message_id
            late = self.overdue.pop(name, None)
            if late is not None and not reply.has_error():
                self.punctuality.answered(late.node, late.label, now() - late.at)
            sent = waiting.pop(name, None)
            if sent is not None:
                packet = self._read(sent, reply, accept)
                slowest = max(slowest, reported_seconds(packet), key=sum)
        return slowest

    def give_up(self, waiting: dict[str, Sent], timeout: float) -> None:
        """Wait for messages no more, but know of replies that come while they can still come."""
        oldest = now() - timeout - EXTRA_SECONDS
        self.overdue |= waiting
        self.overdue = {name: sent for name, sent in self.overdue.items() if sent.at > oldest}

    def _read(self, sent: Sent, reply: Any, accept: Callable[[Sent, Packet], Any]) -> Packet | None:
        """Read a reply; why it is not accepted is said at once and kept."""
        if reply.has_error():
            self.failure = f"an error: {reply.error.reason}"
            emit_warning(f"node {sent.node} replied with {self.failure}")
            return None
        try:
            packet = decode_packet(reply.content)
            accept(sent, packet)
            return packet
        except Exception as error:
            # A reply is a stranger's: whatever comes of reading it is a matter of that node. What
            # the server itself refuses, and not for the reply's sake, ends the run.
            if isinstance(error, CoterieError) and not isinstance(error, BadPacket):
                raise
            if not isinstance(error, BadPacket):
                error = BadPacket(f"it cannot be read: {type(error).__name__}")
            self.failure = f"what is refused: {error}"
            self.counts["refused"] += len(sent.clients)
            emit_warning(f"the reply of node {sent.node} is refused: {error}")
            return None

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        counts, self.counts = self.counts, dict(NO_COUNTS)
        missing, self.missing = self.missing, {}
        found: dict[str, Any] = {name: round(value, 3) for name, value in counts.items()}
        return {**found, "missing": missing} if missing else found


def emit_warning(text: str) -> None:
    warnings.warn(text, CoterieWarning, stacklevel=3)
