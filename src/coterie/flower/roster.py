"""The roster: which nodes are online, which clients each of them holds, and messages to them.

Nodes come and go. A client is recognised by its name, which its node tells when it enrols; its
number is fixed when the run begins. A node that dies, or hangs, or replies with an error or with
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
from coterie.data.tables.columns import sort_key
from coterie.flower.replies import Answers, NodeInfo, read_enrolment, reported_seconds
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, decode_packet, encode_packet

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL_SECONDS = 0.05  # between two looks for replies
ONLINE_SECONDS = 2.0  # between two looks for nodes that are online
MAX_FAILURES = 3  # times in a row that all nodes may reply with an error
# What the record of a round says of the network: clients whose reply was not accepted or did not
# come, and where the seconds went.
NO_COUNTS = {"refused": 0, "silent": 0, "network": 0.0, "startup": 0.0, "compute": 0.0}


class Roster:
    """The nodes that are online, by Flower's id."""

    def __init__(self, grid: Grid, app: App) -> None:
        self.grid = grid
        self.app = app
        self.nodes: dict[int, NodeInfo] = {}  # those that are online and have enrolled
        self.refused: set[int] = set()  # those that may not take part
        self.names: list[str] = []  # of the clients, by number; empty until the run begins
        self.node_of: dict[str, int] = {}  # name of a client -> node that holds it
        self.frozen: str | None = None  # digest of the frozen weights that all must have
        self.refreshed_at = -math.inf  # when we last asked which nodes are online
        self.counts: dict[str, float] = dict(NO_COUNTS)  # since `notes` was last asked
        self.errors: list[str] = []  # with which nodes replied to the last message

    def wait_for_nodes(self) -> None:
        """Wait until as many nodes have enrolled as the run needs."""
        settings, deadline = self.app.network, time.monotonic() + self.app.network.patience
        while len(self.nodes) < settings.nodes:
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(self.nodes)} of {settings.nodes} nodes came in {settings.patience:g} s"
                )
            time.sleep(POLL_SECONDS)
            self.refresh()

    def client_sizes(self) -> dict[str, int]:
        """The training samples of all clients, by name, in the order of the names."""
        sizes: dict[str, int] = {}
        for node in self.nodes.values():
            sizes |= dict(zip(node.names, node.sizes.tolist(), strict=True))
        names = tuple(sizes)
        return {names[i]: sizes[names[i]] for i in sorted(range(len(names)), key=sort_key(names))}

    def number_clients(self, names: list[str]) -> None:
        """Let the run begin with these clients; later ones are left out.

        Nodes whose samples cannot be of one federation are refused.
        """
        self.names = names
        first, *others = self.nodes.values()
        for other in others:
            if (other.inputs, other.target) != (first.inputs, first.target):
                mine, theirs = (
                    ", ".join(map(str, (*node.inputs, node.target))) for node in (first, other)
                )
                raise DataError(
                    f"nodes hold samples of two kinds: {mine} for client {first.names[0]}, "
                    f"{theirs} for client {other.names[0]}"
                )

    def require_frozen(self, digest: str) -> None:
        """Refuse nodes whose network has other frozen weights: those stay out of all messages."""
        self.frozen = digest
        for node in self.nodes.values():
            self.check_frozen(node)

    def check_frozen(self, info: NodeInfo) -> None:
        """Refuse a node with other frozen weights than the server's."""
        if self.frozen is not None and info.frozen != self.frozen:
            raise DataError(
                f"the network of client {info.names[0]} has other frozen weights than the server's"
            )

    def refresh(self) -> None:
        """Ask which nodes are online, and let new ones enrol."""
        self.refreshed_at = time.monotonic()
        online = set(self.grid.get_node_ids())
        for node in set(self.nodes) - online:
            del self.nodes[node]
        self.node_of = {name: node for name, node in self.node_of.items() if node in self.nodes}
        new = sorted(online - set(self.nodes) - self.refused)
        if not new:
            return
        # Until the run has begun there is nothing to wait for; later, a round waits.
        patience = min(self.app.network.timeout, 60.0)
        for node, reply in self.send({n: Packet({"do": "enrol"}) for n in new}, patience).items():
            try:
                self.admit(node, read_enrolment(self.app, reply))
            except (BadPacket, DataError) as error:
                self.refused.add(node)
                emit_warning(f"node {node} is left out: {error}")

    def admit(self, node: int, info: NodeInfo) -> None:
        """Add a node; after the run has begun, clients that are not of the run are left out."""
        for name in info.names:
            other = self.node_of.get(name)
            if other is not None and other != node:
                raise DataError(f"client {name} is already at node {other}")
        self.check_frozen(info)
        strangers = sorted(set(info.names) - set(self.names))
        if self.names and strangers:
            who = ", ".join(strangers)
            emit_warning(f"clients that came after the run began are left out: {who}")
        self.nodes[node] = info
        self.node_of |= dict.fromkeys(info.names, node)

    def online(self, ids: Tensor) -> dict[int, Tensor]:
        """The clients of `ids` whose nodes are online, by node."""
        if time.monotonic() - self.refreshed_at > ONLINE_SECONDS:
            self.refresh()
        found: dict[int, list[int]] = {}
        for i in ids.tolist():
            node = self.node_of.get(self.names[i])
            if node is not None:
                found.setdefault(node, []).append(i)
        return {node: torch.tensor(own) for node, own in found.items()}

    def send(self, packets: dict[int, Packet], timeout: float) -> dict[int, Packet]:
        """One message to each node; the replies that came in time and could be read."""
        from flwr.app import Message

        began = time.monotonic()
        messages = [
            Message(encode_packet(packet), node, "query", ttl=timeout + 60.0)
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
                    emit_warning(f"node {node} replied with an error: {reply.error.reason}")
                    continue
                try:
                    found[node] = decode_packet(reply.content)
                except BadPacket as error:
                    emit_warning(f"the reply of node {node} is refused: {error}")
            if nodes:
                time.sleep(POLL_SECONDS)
                if time.monotonic() - self.refreshed_at > ONLINE_SECONDS and self.names:
                    self.refreshed_at = time.monotonic()
                    online = set(self.grid.get_node_ids())
                    nodes = {message: node for message, node in nodes.items() if node in online}
        self.counts["network"] += time.monotonic() - began
        slowest = max(found.values(), key=lambda reply: sum(reported_seconds(reply)), default=None)
        for name, value in zip(("compute", "startup"), reported_seconds(slowest), strict=True):
            self.counts[name] += value
            self.counts["network"] -= value
        return found

    def exchange(
        self,
        ids: Tensor,
        packet: Callable[[Tensor], Packet],
        accept: Callable[[Tensor, Packet], Any],
    ) -> Answers:
        """Ask the clients `ids`; what `accept` made of the replies of their nodes.

        packet  makes the message to the node of some clients
        accept  reads the reply of the node of some clients, or raises BadPacket

        Below the quorum, those that are missing are asked again until there is one.
        """
        settings = self.app.network
        deadline = time.monotonic() + settings.patience
        left, failures = ids, 0
        answers: Answers = []
        while True:
            online = self.online(left)
            packets = {node: packet(own) for node, own in online.items()}
            for node, reply in self.send(packets, settings.timeout).items():
                try:
                    answers.append((online[node], accept(online[node], reply)))
                except BadPacket as error:
                    self.counts["refused"] += len(online[node])
                    who = ", ".join(self.names[i] for i in online[node][:5].tolist())
                    emit_warning(f"the reply of node {node} (clients {who}) is refused: {error}")
            replied = torch.cat([torch.arange(0), *(own for own, _ in answers)])
            left = ids[~torch.isin(ids, replied)]
            if len(replied) >= settings.quorum * len(ids):
                self.counts["silent"] += len(left)
                return answers
            # What fails on all nodes again and again will fail the next time too.
            failures = failures + 1 if packets and len(self.errors) == len(packets) else 0
            if failures == MAX_FAILURES:
                raise CoterieError(f"all nodes reply with an error: {self.errors[0]}")
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(replied)} of {len(ids)} clients replied, fewer than the quorum of "
                    f"{settings.quorum:g}, in {settings.patience:g} s"
                )
            time.sleep(ONLINE_SECONDS)
            self.refresh()

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        counts, self.counts = self.counts, dict(NO_COUNTS)
        return {name: round(value, 3) for name, value in counts.items()}


def emit_warning(text: str) -> None:
    warnings.warn(text, CoterieWarning, stacklevel=3)
