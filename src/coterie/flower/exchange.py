"""An exchange: some clients are asked for something, until enough of them have replied.

The same holds for a start, a round, a serving and an evaluation. A node that dies, or hangs, or
replies with an error or with anything that cannot be read or accepted, costs its clients and
nothing else, as long as the others are a quorum. Below it, those who are missing are asked again; a
reply that comes late, while its clients are being asked again, is accepted like any other, once.

With a quorum, whoever is missing has a fair time and no more (punctuality.py), and who was late is
left out for a while. Who did not take part, and why, is in the record of the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.flower.mailbox import Mailbox, Sent, emit_warning
from coterie.flower.punctuality import Answer, now
from coterie.flower.roster import Roster
from coterie.flower.wire import BadPacket, Packet

MAX_FAILURES = 3  # times in a row that no node may give a reply that can be accepted


class Others(NamedTuple):
    """Clients that take part in a round and are not asked this time."""

    number: int
    silent: int  # of them, those who were asked before in this round and did not reply


class Exchange:
    """Asks the clients of a roster.

    packet  makes the message to the node of some clients
    accept  reads the reply of the node of some clients, or raises BadPacket
    label   what is asked for: it takes a node about as long each time
    sizes   [m] how many samples each client has
    """

    def __init__(
        self,
        roster: Roster,
        packet: Callable[[Tensor], Packet],
        accept: Callable[[Tensor, Packet], Any],
        label: str,
        sizes: Tensor,
    ) -> None:
        self.roster, self.packet, self.accept = roster, packet, accept
        self.label, self.sizes = label, sizes
        self.mailbox: Mailbox = roster.mailbox
        self.punctuality = self.mailbox.punctuality
        self.taken: list[Answer] = []  # how long each answer took
        self.waiting: dict[str, Sent] = {}  # messages without a reply, by name
        self.answers: list[tuple[Tensor, Any]] = []  # clients that were asked, and what came
        self.replied = torch.arange(0)  # the clients whose reply was accepted

    def run(self, ids: Tensor, others: Others | None = None) -> list[Any]:
        """What `accept` made of the replies of the nodes of clients `ids`; they are a quorum.

        They are in the order of the clients, whichever came first. A quorum is one of all who take
        part: where an algorithm asks some of them only, as it does those who were missing before,
        the others count, unless they are silent in this round.
        """
        number, silent = others or Others(0, 0)
        needed = self.roster.app.network.quorum * (len(ids) + number) - (number - silent)
        settings, began = self.roster.app.network, time.monotonic()
        failures, left_out = 0, self.rest(ids, needed)
        while True:
            due = torch.cat([self.replied, left_out])
            asked, accepted = self.ask(ids[~torch.isin(ids, due)], needed)
            if len(self.replied) >= needed:
                self.close(ids, left_out)
                return [what for _, what in sorted(self.answers, key=lambda each: int(each[0][0]))]
            # What fails on all nodes again and again will fail the next time too.
            hopeless = asked and not accepted and not self.waiting and not len(self.replied)
            failures = failures + 1 if hopeless else 0
            if failures == MAX_FAILURES:
                raise CoterieError(f"all nodes reply with {self.mailbox.failure}")
            if time.monotonic() - began > settings.patience:
                failure = self.mailbox.failure
                raise CoterieError(
                    f"{len(self.replied)} of {len(ids)} clients replied, fewer than the quorum of "
                    f"{settings.quorum:g}, in {settings.patience:g} s"
                    + (f"; the last that failed replied with {failure}" if failure else "")
                )
            left_out = left_out[:0]
            time.sleep(self.mailbox.pace.online)
            self.roster.refresh()

    def rest(self, ids: Tensor, needed: float) -> Tensor:
        """The clients that are not asked, since their nodes were late; none if they are needed."""
        late = {n: c for n, c in self.roster.online(ids).items() if n in self.punctuality.rests}
        if not late or len(ids) - sum(map(len, late.values())) < max(needed, 1):
            return torch.arange(0)
        for node in late:
            self.punctuality.rested(node)
        return torch.cat([*late.values()])

    def close(self, ids: Tensor, left_out: Tensor) -> None:
        """Say who did not take part, and leave those who are late out of the next exchanges."""
        missing = ids[~torch.isin(ids, self.replied)]
        self.mailbox.counts["silent"] += len(missing)
        online, reasons = self.roster.online(missing), self.mailbox.missing
        pending = {sent.node for sent in self.waiting.values()}
        for node, clients in online.items():
            who = self.roster.describe(clients)
            if bool(torch.isin(clients, left_out).any()):
                reasons.setdefault(who, "was late")
            elif node not in pending:
                reasons[who] = "failed"
            else:
                reasons[who] = "late"
                rests = self.punctuality.lapse(node)
                again = f", and it is left out of the next {rests} exchanges" if rests else ""
                emit_warning(
                    f"node {node} (clients {who}) is late with {self.label}: "
                    f"the others go on without it{again}"
                )
        present = torch.cat([torch.arange(0), *online.values()])
        away = missing[~torch.isin(missing, present)]
        if len(away):
            reasons[self.roster.describe(away)] = "away"
        self.mailbox.give_up(self.waiting, self.roster.app.network.timeout)

    def ask(self, ids: Tensor, needed: float) -> tuple[int, int]:
        """Ask clients once: how many nodes were asked, and how many replies were accepted."""
        timeout = self.roster.app.network.timeout
        clients = self.roster.online(ids)
        packets = {node: self.packet(own) for node, own in clients.items()}
        before = len(self.answers)
        sent = self.mailbox.send(packets, clients, timeout, self.label)
        self.waiting |= sent

        def awaited() -> bool:
            online = self.roster.still_online()
            missing = [
                each
                for name, each in sent.items()
                if name in self.waiting and each.node in online and not self.has_replied(each)
            ]
            if len(self.replied) < needed:
                return bool(missing)
            return any(now() - each.at < self.fair_seconds(each) for each in missing)

        self.mailbox.receive(self.waiting, self.take_in, timeout, awaited)
        return len(packets), len(self.answers) - before

    def fair_seconds(self, sent: Sent) -> float:
        """How long the node of a message may take once there is a quorum."""
        samples = int(self.sizes[sent.clients].sum())
        return self.punctuality.fair_seconds(sent.node, self.label, samples, self.taken)

    def has_replied(self, sent: Sent) -> bool:
        """Whether a client of a message has replied to it, or to another."""
        return bool(torch.isin(sent.clients, self.replied).any())

    def take_in(self, sent: Sent, reply: Packet) -> None:
        """Accept the reply of a node, unless its clients have replied before."""
        if self.has_replied(sent):
            return
        seconds = now() - sent.at
        self.punctuality.answered(sent.node, self.label, seconds)
        self.taken.append(Answer(seconds, int(self.sizes[sent.clients].sum())))
        try:
            self.answers.append((sent.clients, self.accept(sent.clients, reply)))
        except BadPacket as error:
            who = ", ".join(self.roster.names[i] for i in sent.clients[:5].tolist())
            raise BadPacket(f"{error} (clients {who})") from error
        self.replied = torch.cat([self.replied, sent.clients])
