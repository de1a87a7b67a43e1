"""The clients of a federation behind Flower's grid.

To an algorithm they are `Clients`, to a run they are a `Population`. A message goes to every node
that holds clients who are asked, one for all of them. Where a fold only adds, a node with many
clients folds what they upload and sends the sums (folded.py).

A reply that a client step cannot have returned is refused (replies.py). What becomes of a round in
which nodes do not reply is the business of an exchange (exchange.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.clients import Call, Fold, Replies, merge_answers
from coterie.core.layout import frozen_digest
from coterie.core.population import Purpose, RoundClients
from coterie.data.federation import Federation, Samples
from coterie.engine.chunks import Chunking
from coterie.engine.client_memory import ClientMemory
from coterie.flower.claims import claim_factors, weigh_down
from coterie.flower.exchange import Exchange, Others
from coterie.flower.mailbox import Pace, emit_warning
from coterie.flower.memory import WHEN_KEPT
from coterie.flower.outliers import OutlierFilter
from coterie.flower.owners import ClientOwners
from coterie.flower.replies import NodeInfo, NodeReply
from coterie.flower.roster import Roster
from coterie.flower.sample_kinds import made_up_samples
from coterie.flower.settings import App
from coterie.flower.step_exchange import StepExchange
from coterie.flower.wire import Packet

if TYPE_CHECKING:
    from flwr.serverapp import Grid


class Network:
    """The clients of all nodes, by their number in the federation.

    roster   the nodes, all enrolled, and the names of the clients by number
    sizes    [m] how many training samples each client has
    run      name of the run, which stays when it is resumed
    attempt  name of this attempt at it, which does not
    """

    def __init__(self, roster: Roster, app: App, sizes: Tensor, *, run: str, attempt: str) -> None:
        settings = app.plan.settings
        self.roster, self.app, self.sizes = roster, app, sizes
        self.run, self.attempt = run, attempt
        self.names = roster.names
        self.population, self.ids = len(sizes), torch.arange(len(sizes))
        self.seed = settings.seed
        self.began = -1  # rounds done when this attempt began; -1: it begins anew
        self.rounds_done = 0
        self.rounds_saved = 0  # that the server's checkpoint holds
        self.best = 0  # rounds after which the state was best so far
        self.best_saved = 0  # the same when the checkpoint was written
        self.exchanges = 0  # of steps that train, in this attempt
        self.outliers = OutlierFilter(app.network.outlier)
        node = next(iter(roster.nodes.values()))  # they all have samples of one kind
        placeholder, self.task = app.plan.prepare(placeholder_federation(app, node))
        number = {name: i for i, name in enumerate(self.names)}
        held = [[number[n] for n in node.names if n in number] for node in roster.nodes.values()]
        claims = [torch.tensor(own) for own in held if own]
        self.factors = claim_factors(claims, sizes, app.network.most_share)
        # What clients keep is on their nodes' disks. Here is when each of them last kept something.
        self.memory = ClientMemory(self.population)
        roster.require_frozen(frozen_digest(self.task.module))
        made_up, self.labelled = placeholder.train, placeholder.labelled
        self.chunking = Chunking(self.task, made_up.sample_numbers, settings.chunk)
        # One sample stands for all where only its shape counts.
        x, y = made_up.x[:1], made_up.y[:1]
        self.samples = Samples(x, y, torch.tensor([0, *sizes.tolist()]).cumsum(0))

    @property
    def counts_less(self) -> str:
        """Whose samples count for fewer than their node claims, where models depend on that."""
        less = torch.nonzero(self.factors < 1).flatten().tolist()
        if not less or getattr(self.app.plan.algorithm, "weighting", "size") != "size":
            return ""
        return (
            f"the node of client {self.names[less[0]]} claims more than "
            f"{self.app.network.most_share:g} of all samples, and counts for so many (`most_share`)"
        )

    @property
    def federation(self) -> Federation:
        """What the server knows of the data: names, sizes, and true clusters if nodes tell them."""
        by_name = {
            name: cluster
            for node in self.roster.nodes.values()
            for name, cluster in zip(node.names, node.cluster or (), strict=False)
        }
        complete = all(name in by_name for name in self.names)
        cluster = torch.tensor([by_name[name] for name in self.names]) if complete else None
        return Federation(
            self.samples,
            None,
            cluster,
            name=self.app.plan.federation_name,
            clients=tuple(self.names),
            classes=self.app.schema.classes if self.app.schema else (),
            sample_clusters=not self.task.predicts and self.samples.has_labels,
            labelled=self.labelled,
            schema=self.app.schema,
        )

    @property
    def validation_sizes(self) -> Tensor:
        """How many validation samples each client has, [m]; 0 where its node is away."""
        by_name: dict[str, int] = {}
        for node in self.roster.nodes.values():
            by_name |= dict(zip(node.names, node.validation.tolist(), strict=True))
        return torch.tensor([by_name.get(name, 0) for name in self.names])

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> RoundClients:
        """The clients `ids` (all of them if not given) in a round, behind the seam."""
        if purpose == "round":
            self.rounds_done = round + 1
        ids = self.ids if ids is None else ids
        return RoundClients(self, round, ids, (self.seed, purpose, *address), purpose)

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: who replied, and the fold of what they sent, unfinished.

        What came client by client is folded in the simulator's order, then what nodes folded is
        added, in the order of their clients.
        """
        if not len(call.ids):
            return call.ids, fold.start()
        step = StepExchange(call, fold, self.sizes)
        self.exchanges += 1
        others = Others(call.participants - len(call.ids), call.silent)
        replies = self.ask("step", call.ids, step.contents, step.read, others, step.label)
        replies, refused = step.sift(replies, self.outliers)
        self.report_refused(refused)
        replies = [weigh_down(each, fold, self.factors) for each in replies]
        ids, upload = merge_answers(*((each.ids, each.upload) for each in replies if each.upload))
        # The listener was told when replies arrived; nodes apply the channel if it can cross.
        channel = () if step.channel_crosses else call.channel
        arrived = Replies(call._replace(channel=channel, listener=None), fold)
        for places in self.chunking.cut(self.sizes[ids]):
            arrived.add(ids[places], type(upload)(*(value[places] for value in upload)))
        folded = [each for each in replies if each.total is not None]
        total = reduce(fold.merge, (each.total for each in folded), arrived.total)
        return torch.cat([arrived.ids, *(each.ids for each in folded)]).sort().values, total

    def ask(
        self,
        action: str,
        ids: Tensor,
        contents: Callable[[Tensor], Packet],
        read: Callable[[Tensor, Packet], NodeReply],
        others: Others | None = None,
        label: str = "",
    ) -> list[NodeReply]:
        """Ask clients `ids` for something: what their nodes reply, in the order of the clients.

        contents  makes what is particular of the message to the node of some clients
        read      reads the reply of the node of some clients, or raises BadPacket
        others    clients that take part and are not asked this time
        label     what is asked for; the action, if not given
        """

        def packet(own: Tensor) -> Packet:
            return self.packet(action, own, contents(own))

        def accept(own: Tensor, reply: Packet) -> NodeReply:
            found = read(own, reply)
            if reply.header["kept"]:
                self.memory.keep(WHEN_KEPT, own, torch.full_like(own, self.rounds_done + 1))
            return found

        asking = Exchange(self.roster, packet, accept, label or action, self.sizes)
        return asking.run(ids, others)

    def packet(self, action: str, ids: Tensor, contents: Packet) -> Packet:
        """The message that asks the node of clients `ids` for something."""
        common = {
            "do": action,
            "names": [self.names[i] for i in ids.tolist()],
            "run": self.run,
            "attempt": self.attempt,
            "began": self.began,
            "exchange": self.exchanges,
            "rounds": self.rounds_done,
            "saved": self.rounds_saved,
            "best": [self.best_saved, self.best],
        }
        tensors = {"ids": ids, "kept": self.last_kept(ids), **contents.tensors}
        return Packet({**common, **contents.header}, tensors)

    def report_refused(self, refused: Mapping[int, str]) -> None:
        """Say whose replies are refused, and why."""
        for i, reason in refused.items():
            emit_warning(f"the reply of client {self.names[i]} is refused: {reason}")
        self.roster.mailbox.counts["refused"] += len(refused)

    def last_kept(self, ids: Tensor) -> Tensor:
        """When clients last kept something, as rounds done by then and one; 0: never."""
        known = self.memory.remembers(WHEN_KEPT, ids)
        found = torch.zeros_like(ids)
        return found if not bool(known.any()) else self.memory.recall(WHEN_KEPT, ids) * known

    def on_checkpoint(self, rounds: int) -> None:
        """Nodes are told with the next message what they may forget."""
        self.rounds_saved, self.best_saved = rounds, self.best

    def on_best(self, rounds: int) -> None:
        """Nodes are told with the next message what they must not forget."""
        self.best = rounds

    def go_to(self, rounds: int) -> None:
        """Clients are asked as they were after so many rounds."""
        self.rounds_done = rounds

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        return self.roster.mailbox.notes()

    def finish(self) -> None:
        """Tell the nodes that the run is over."""
        header = {"do": "finish", "run": self.run, "attempt": self.attempt, "began": self.began}
        self.roster.tell(Packet(header))


def join_network(
    grid: Grid,
    app: App,
    *,
    run: str,
    attempt: str,
    clients: Mapping[str, int] | None = None,
    pace: Pace,
    owners: ClientOwners | None = None,
) -> Network:
    """Wait until the nodes have enrolled, and number their clients.

    `clients` are those of a run that is resumed, by number: the samples of each, by name.
    """
    roster = Roster(grid, app, pace, owners)
    roster.wait_for_nodes()
    roster.keep_usual_kind()
    sizes = roster.client_sizes() if clients is None else clients
    roster.number_clients(list(sizes))
    return Network(roster, app, torch.tensor(list(sizes.values())), run=run, attempt=attempt)


def placeholder_federation(app: App, node: NodeInfo) -> Federation:
    """One client with two made-up samples, of the shape and type that the nodes' samples have."""
    if app.schema is not None:
        return app.schema.stub(node.inputs[0].shape, node.inputs[0].dtype)
    made_up = made_up_samples(node.inputs, node.target)
    return Federation(made_up, class_count=node.outputs, scale=node.scale)
