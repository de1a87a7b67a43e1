"""The roster: which nodes are there, whose clients they hold, and messages to them.

Nodes come and go. A client is known by its name, which its node tells when it enrols; the number of
a client is fixed when the run begins. A node that dies, or hangs, or replies with an error or with
anything that cannot be read or accepted, costs the round its clients and nothing else.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning, DataError
from coterie.flower.enrolment import Known, enrolled
from coterie.flower.replies import seconds_of
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, packed, unpacked

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL_SECONDS = 0.05  # between looks for replies
ONLINE_SECONDS = 2.0  # between looks at who is there
MOST_FAILURES = 3  # times in a row that all nodes may reply with an error


class Counts:
    """What has happened in a round besides what was asked for."""

    def __init__(self) -> None:
        self.refused = 0  # clients whose reply was not what it had to be
        self.silent = 0  # clients whose reply did not come
        self.seconds = {"network": 0.0, "startup": 0.0, "compute": 0.0}  # where the time went


class Roster:
    """The nodes that are online, by Flower's id."""

    def __init__(self, grid: Grid, app: App) -> None:
        self.grid = grid
        self.app = app
        self.known: dict[int, Known] = {}  # those that are online and belong here
        self.refused: set[int] = set()  # those that do not belong here
        self.names: list[str] = []  # of the clients, by number; empty until the run begins
        self.home: dict[str, int] = {}  # name of a client -> node that holds it
        self.looked = -math.inf  # when we last asked who is there
        self.counts = Counts()
        self.errors: list[str] = []  # that nodes replied with to the last message

    def wait(self) -> None:
        """Wait until there are as many as the run needs."""
        settings, deadline = self.app.network, time.monotonic() + self.app.network.patience
        while len(self.known) < settings.nodes:
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(self.known)} of {settings.nodes} nodes came in {settings.patience:g} s"
                )
            time.sleep(POLL_SECONDS)
            self.look()

    def check_alike(self) -> None:
        """Refuse nodes whose samples cannot be of one federation."""
        first, *others = self.known.values()
        for other in others:
            if (other.shape, other.types) != (first.shape, first.types):
                raise DataError(
                    f"nodes hold samples of two kinds: {first.shape} for client {first.names[0]}, "
                    f"{other.shape} for client {other.names[0]}"
                )

    def look(self) -> None:
        """See which nodes are there, and let new ones enrol."""
        self.looked = time.monotonic()
        online = set(self.grid.get_node_ids())
        for node in set(self.known) - online:
            del self.known[node]
        self.home = {name: node for name, node in self.home.items() if node in self.known}
        new = sorted(online - set(self.known) - self.refused)
        if not new:
            return
        # Until the run has begun there is nothing to wait for; later, a round waits.
        patience = min(self.app.network.timeout, 60.0)
        for node, reply in self.send({n: Packet({"do": "enrol"}) for n in new}, patience).items():
            try:
                known = enrolled(self.app, reply)
                self.admit(node, known)
            except (BadPacket, DataError) as error:
                self.refused.add(node)
                warn(f"node {node} is left out: {error}")

    def admit(self, node: int, known: Known) -> None:
        """Take in a node: all its clients are new before the run begins, and known after it."""
        for name in known.names:
            other = self.home.get(name)
            if other is not None and other != node:
                raise DataError(f"client {name} is already at node {other}")
        if self.names:
            strangers = sorted(set(known.names) - set(self.names))
            if strangers:
                warn(f"clients that came after the run began are left out: {', '.join(strangers)}")
        self.known[node] = known
        self.home |= dict.fromkeys(known.names, node)

    def present(self, ids: Tensor) -> dict[int, Tensor]:
        """The clients of `ids` that are there, by node."""
        if time.monotonic() - self.looked > ONLINE_SECONDS:
            self.look()
        found: dict[int, list[int]] = {}
        for i in ids.tolist():
            node = self.home.get(self.names[i])
            if node is not None:
                found.setdefault(node, []).append(i)
        return {node: torch.tensor(own) for node, own in found.items()}

    def send(self, packets: dict[int, Packet], timeout: float) -> dict[int, Packet]:
        """One message to each node; the replies that came in time and could be read."""
        from flwr.app import Message

        began = time.monotonic()
        messages = [
            Message(packed(packet), node, "query", ttl=timeout + 60.0)
            for node, packet in packets.items()
        ]
        nodes = dict(zip(self.grid.push_messages(messages), packets, strict=True))
        found: dict[int, Packet] = {}
        self.errors = []
        while nodes and time.monotonic() - began < timeout:
            for reply in self.grid.pull_messages(list(nodes)):
                node = nodes.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                if reply.has_error():
                    self.errors.append(str(reply.error.reason))
                    warn(f"node {node} replied with an error: {reply.error.reason}")
                    continue
                try:
                    found[node] = unpacked(reply.content)
                except BadPacket as error:
                    warn(f"the reply of node {node} is refused: {error}")
            if nodes:
                time.sleep(POLL_SECONDS)
                if time.monotonic() - self.looked > ONLINE_SECONDS and self.names:
                    self.looked = time.monotonic()
                    online = set(self.grid.get_node_ids())
                    nodes = {message: node for message, node in nodes.items() if node in online}
        self.counts.seconds["network"] += time.monotonic() - began
        slowest = max(found.values(), key=lambda reply: sum(seconds_of(reply)), default=None)
        for name, value in zip(("compute", "startup"), seconds_of(slowest), strict=True):
            self.counts.seconds[name] += value
            self.counts.seconds["network"] -= value
        return found

    def exchange(
        self,
        ids: Tensor,
        packet: Callable[[Tensor], Packet],
        accept: Callable[[int, Tensor, Packet], Any],
    ) -> list[tuple[Tensor, Any]]:
        """Ask the clients `ids`; what `accept` made of the replies, by clients.

        Below the quorum, those that are missing are asked again until there is one.
        """
        settings = self.app.network
        deadline = time.monotonic() + settings.patience
        left, answers, failures = ids, [], 0
        while True:
            present = self.present(left)
            packets = {node: packet(own) for node, own in present.items()}
            for node, reply in self.send(packets, settings.timeout).items():
                try:
                    answers.append((present[node], accept(node, present[node], reply)))
                except BadPacket as error:
                    self.counts.refused += len(present[node])
                    who = ", ".join(self.names[i] for i in present[node][:5].tolist())
                    warn(f"the reply of node {node} (clients {who}) is refused: {error}")
            heard = torch.cat([torch.arange(0), *(own for own, _ in answers)])
            left = ids[~torch.isin(ids, heard)]
            if len(heard) >= settings.quorum * len(ids):
                self.counts.silent += len(left)
                return answers
            # What fails everywhere, and again, will not be better the next time.
            failures = failures + 1 if packets and len(self.errors) == len(packets) else 0
            if failures == MOST_FAILURES:
                raise CoterieError(f"all nodes reply with an error: {self.errors[0]}")
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(heard)} of {len(ids)} clients replied, fewer than the quorum of "
                    f"{settings.quorum:g}, in {settings.patience:g} s"
                )
            time.sleep(ONLINE_SECONDS)
            self.look()

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        counts, self.counts = self.counts, Counts()
        return {
            "refused": counts.refused,
            "silent": counts.silent,
            **{name: round(value, 3) for name, value in counts.seconds.items()},
        }


def warn(text: str) -> None:
    warnings.warn(text, CoterieWarning, stacklevel=3)
