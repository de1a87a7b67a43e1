"""The roster: which nodes are online, and which clients each of them holds.

Nodes come and go. A client is recognised by its name, which its node tells when it enrols; its
number is fixed when the run begins.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, DataError
from coterie.data.tables.columns import sort_key
from coterie.flower.mailbox import Mailbox, Pace, Sent, emit_warning
from coterie.flower.owners import ClientOwners
from coterie.flower.punctuality import now
from coterie.flower.replies import NodeInfo, read_enrolment
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet

if TYPE_CHECKING:
    from flwr.serverapp import Grid

MOST_SECONDS = 60.0  # after which a node that has not enrolled is asked once more
TELL_SECONDS = 10.0  # to wait until nodes have a message that needs no reply
JOIN_TIMES = 3.0  # as long as the slowest node so far others may take to enrol when a run begins
NAMED = 5  # clients by which a node is known to people


class Roster:
    """The nodes that are online, by Flower's id."""

    def __init__(
        self, grid: Grid, app: App, pace: Pace, owners: ClientOwners | None = None
    ) -> None:
        self.grid = grid
        self.app = app
        self.mailbox = Mailbox(grid, pace)
        if app.learnt and app.schema is not None:
            self.mailbox.common["schema"] = app.schema.raw()
        self.owners = owners or ClientOwners(None)
        self.nodes: dict[int, NodeInfo] = {}  # those that are online and have enrolled
        self.refused: set[int] = set()  # those that may not take part
        self.names: list[str] = []  # of the clients, by number; empty until the run begins
        self.node_of: dict[str, int] = {}  # name of a client -> node that holds it
        self.kind: Any = None  # of samples that most nodes have, once the run has begun
        self.frozen: str | None = None  # digest of the frozen weights that all must have
        self.refreshed_at = -math.inf  # when we last asked which nodes are online
        self.seen_online: set[int] = set()  # what the answer was
        self.enrolling: dict[str, Sent] = {}  # messages to nodes that have not enrolled, by name
        self.slowest = 0.0  # seconds that an enrolment took

    def wait_for_nodes(self) -> None:
        """Wait until as many nodes have enrolled as the run needs, and others could do so."""
        settings, deadline = self.app.network, time.monotonic() + self.app.network.patience
        while len(self.nodes) < settings.nodes or self._others_may_enrol():
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(self.nodes)} of {settings.nodes} nodes came in {settings.patience:g} s"
                )
            time.sleep(self.mailbox.pace.poll)
            self.refresh()

    def _others_may_enrol(self) -> bool:
        """Whether a node that is online has not had a fair time to enrol yet."""
        fair = min(MOST_SECONDS, max(TELL_SECONDS, JOIN_TIMES * self.slowest))
        return any(now() - sent.at < fair for sent in self.enrolling.values())

    def client_sizes(self) -> dict[str, int]:
        """The training samples of all clients, by name, in the order of the names."""
        sizes: dict[str, int] = {}
        for node in self.nodes.values():
            sizes |= dict(zip(node.names, node.sizes.tolist(), strict=True))
        names = tuple(sizes)
        return {names[i]: sizes[names[i]] for i in sorted(range(len(names)), key=sort_key(names))}

    def keep_usual_kind(self) -> None:
        """Leave out nodes whose samples are of another kind than those of most nodes."""
        kinds = {node: self.kind_of(info) for node, info in self.nodes.items()}
        usual, votes = Counter(kinds.values()).most_common(1)[0]
        odd = [node for node, kind in kinds.items() if kind != usual]
        if 2 * votes <= len(kinds):
            return  # nobody can say who is right: `number_clients` refuses
        self.kind = usual
        for node in odd:
            self.leave_out(node, "its samples are unlike those of most nodes")

    def leave_out(self, node: int, why: str) -> None:
        """Send nothing to a node any more."""
        self.refused.add(node)
        self.nodes.pop(node, None)
        self.node_of = {name: other for name, other in self.node_of.items() if other != node}
        emit_warning(f"node {node} is left out: {why}")

    def kind_of(self, info: NodeInfo) -> Any:
        """What the samples of a node are like; a schema has the classes of all nodes."""
        own = (info.outputs, info.scale) if self.app.schema is None else ()
        return info.inputs, info.target, own

    def number_clients(self, names: list[str]) -> None:
        """Let the run begin with these clients; later ones are left out.

        Nodes whose samples cannot be of one federation are refused.
        """
        self.names = names
        for node, info in self.nodes.items():
            self.bind(node, info)
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
            same = (other.outputs, other.scale) == (first.outputs, first.scale)
            if self.app.schema is None and not same:  # a schema has the classes of all nodes
                raise DataError(
                    f"nodes hold samples of two kinds: {first.outputs} outputs and scale "
                    f"{first.scale:g} for client {first.names[0]}, {other.outputs} and "
                    f"{other.scale:g} for client {other.names[0]}"
                )

    def require_frozen(self, digest: str) -> None:
        """Refuse nodes whose network has other frozen weights: those stay out of all messages."""
        self.frozen = digest
        odd = {node: info for node, info in self.nodes.items() if info.frozen != digest}
        for node, info in odd.items():
            if 2 * len(odd) >= len(self.nodes):
                self.check_frozen(info)
            self.leave_out(node, "its network has other frozen weights than the server's")

    def check_frozen(self, info: NodeInfo) -> None:
        """Refuse a node with other frozen weights than the server's."""
        if self.frozen is not None and info.frozen != self.frozen:
            raise DataError(
                f"the network of client {info.names[0]} has other frozen weights than the server's"
            )

    def refresh(self) -> None:
        """Ask which nodes are online, and let new ones enrol; nobody waits for them."""
        self.refreshed_at = time.monotonic()
        self.seen_online = online = set(self.grid.get_node_ids())
        for node in set(self.nodes) - online:
            del self.nodes[node]
            self.mailbox.punctuality.forget(node)
        self.node_of = {name: node for name, node in self.node_of.items() if node in self.nodes}
        for name, sent in list(self.enrolling.items()):
            if sent.node not in online:
                del self.enrolling[name]
            elif now() - sent.at > MOST_SECONDS:
                del self.enrolling[name]
                emit_warning(
                    f"node {sent.node} is online and has not enrolled in {MOST_SECONDS:g} s: "
                    "the run goes on without it, and it is asked once more"
                )
        asked = {sent.node for sent in self.enrolling.values()}
        if new := sorted(online - set(self.nodes) - self.refused - asked):
            self.owners.look()
            packets = {node: Packet({"do": "enrol"}) for node in new}
            self.enrolling |= self.mailbox.send(packets, {}, MOST_SECONDS, "enrol")
        self.take_enrolments()

    def take_enrolments(self) -> None:
        """Let the nodes take part that have enrolled since we last looked."""
        if self.enrolling:
            self.mailbox.collect(self.enrolling, self.enrol)

    def enrol(self, sent: Sent, reply: Packet) -> None:
        """Let a node take part, if what it says of itself can be true."""
        self.slowest = max(self.slowest, now() - sent.at)
        try:
            self.admit(sent.node, read_enrolment(self.app, reply))
        except (BadPacket, DataError) as error:
            self.leave_out(sent.node, str(error))

    def admit(self, node: int, info: NodeInfo) -> None:
        """Add a node; after the run has begun, clients that are not of the run are left out."""
        for name in info.names:
            other = self.node_of.get(name)
            if other is not None and other != node:
                raise DataError(f"client {name} is already at node {other}")
        self.owners.check(node, info.names)
        self.check_frozen(info)
        if self.kind is not None and self.kind_of(info) != self.kind:
            raise DataError("its samples are unlike those of most nodes")
        strangers = sorted(set(info.names) - set(self.names))
        if self.names and strangers:
            who = ", ".join(strangers)
            emit_warning(f"clients that came after the run began are left out: {who}")
        self.nodes[node] = info
        self.node_of |= dict.fromkeys(info.names, node)
        if self.names:
            self.bind(node, info)

    def bind(self, node: int, info: NodeInfo) -> None:
        """Let the clients of the run that a node holds belong to its key."""
        known = set(self.names)
        self.owners.bind(node, [name for name in info.names if name in known])

    def online(self, ids: Tensor) -> dict[int, Tensor]:
        """The clients of `ids` whose nodes are online, by node."""
        if self._is_due():
            self.refresh()
        found: dict[int, list[int]] = {}
        for i in ids.tolist():
            node = self.node_of.get(self.names[i])
            if node is not None:
                found.setdefault(node, []).append(i)
        return {node: torch.tensor(own) for node, own in found.items()}

    def still_online(self) -> set[int]:
        """The nodes that are online, as of a moment ago."""
        if self._is_due():
            self.refreshed_at = time.monotonic()
            self.seen_online = set(self.grid.get_node_ids())
            self.take_enrolments()
        return self.seen_online

    def describe(self, clients: Tensor) -> str:
        """Clients as people know them: by name, the first few of many."""
        named = ", ".join(self.names[i] for i in clients[:NAMED].tolist())
        return named if len(clients) <= NAMED else f"{named} and {len(clients) - NAMED} more"

    def tell(self, packet: Packet) -> None:
        """Send a message to all nodes that are online and wait a little until they have it."""
        self.refresh()
        self._deliver(dict.fromkeys(self.nodes, packet), TELL_SECONDS)

    def hand_out(self, packets: dict[int, Packet]) -> None:
        """Send each node a message of its own and wait until all that are online have answered."""
        self._deliver(packets, self.app.network.timeout)

    def _deliver(self, packets: dict[int, Packet], most: float) -> None:
        """Send messages that are not about clients, and wait for the replies."""
        timeout = min(self.app.network.timeout, most)
        waiting = self.mailbox.send(packets, {}, timeout, "tell")
        self.mailbox.receive(
            waiting,
            lambda sent, reply: None,
            timeout,
            lambda: any(sent.node in self.still_online() for sent in waiting.values()),
        )

    def _is_due(self) -> bool:
        return time.monotonic() - self.refreshed_at > self.mailbox.pace.online
