"""The clients of a federation behind Flower's grid.

To an algorithm they are `Clients`, to a run they are what a simulator is. A message goes to every
node that holds clients who are asked, one for all of them; the replies are checked, put in order of
client id and folded in the order in which the simulator folds them, whichever came first.

Nodes come and go. A client is known by its name, which its node tells when it enrols; the number of
a client is fixed when the run begins. A node that dies, or hangs, or replies with an error or with
anything that a client step cannot have returned, costs the round its clients and nothing else.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms import ALGORITHMS
from coterie.core.algorithm import Serving
from coterie.core.clients import Call, Clients, Each, Fold, Part, merged
from coterie.core.errors import CoterieError, CoterieWarning, DataError
from coterie.core.lazy import dense
from coterie.data.federation import Federation, Samples
from coterie.data.tables.columns import in_order
from coterie.engine.simulator import Simulator
from coterie.experiment.evaluation import losses_or_gradients
from coterie.flower.enrolment import Known, enrolled, rehearsal
from coterie.flower.replies import Spec, Usual, checked, seconds_of
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, packed, unpacked

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL_SECONDS = 0.05  # between looks for replies
ONLINE_SECONDS = 2.0  # between looks at who is there
MOST_FAILURES = 3  # times in a row that all nodes may reply with an error
MOST_CLASSES = 100  # true clusters of samples, where no schema says how many there are
NAMES = {kind: name for name, kind in ALGORITHMS.items()}


class Counts:
    """What has happened in a round besides what was asked for."""

    def __init__(self) -> None:
        self.refused = 0  # clients whose reply was not what it had to be
        self.silent = 0  # clients whose reply did not come
        self.seconds = {"network": 0.0, "startup": 0.0, "compute": 0.0}  # where the time went


class Network(Simulator):
    """The clients of all nodes, by their number in the federation."""

    def __init__(self, grid: Grid, app: App, *, run: str, attempt: str) -> None:
        self.grid = grid
        self.app = app
        self.run, self.attempt = run, attempt
        self.nodes: dict[int, Known] = {}  # those that are online, by Flower's id
        self.refused: set[int] = set()  # those that do not belong here
        self.names: list[str] = []  # of the clients, by number; empty until the run begins
        self.home: dict[str, int] = {}  # name of a client -> node that holds it
        self.looked = -math.inf  # when we last asked who is there
        self.done = 0  # rounds done
        self.saved = 0  # rounds that the server's checkpoint holds
        self.counts = Counts()
        self.errors: list[str] = []  # that nodes replied with to the last message
        self.usual = Usual(app.network.outlier)

    def begin(self, names: list[str] | None = None, sizes: list[int] | None = None) -> None:
        """Wait for the nodes and number their clients; or expect those of a run that goes on."""
        settings, deadline = self.app.network, time.monotonic() + self.app.network.patience
        while len(self.nodes) < settings.nodes:
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(self.nodes)} of {settings.nodes} nodes came in {settings.patience:g} s"
                )
            time.sleep(POLL_SECONDS)
            self.look()
        known: dict[str, int] = {}
        for node in self.nodes.values():
            known |= node.size_of
        if names is None:
            found = tuple(known)
            order = sorted(range(len(found)), key=in_order(found))
            names, sizes = [found[i] for i in order], [known[found[i]] for i in order]
        assert sizes is not None
        self.names = names
        self.check_alike()
        first = next(iter(self.nodes.values()))
        federation, task = self.app.plan.prepared(rehearsal(self.app, first))
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        # The rehearsal's client stands for all where only shapes count; the sizes are the clients'.
        super().__init__(
            federation.train,
            task,
            seed=self.app.plan.settings.seed,
            chunk=self.app.plan.settings.chunk,
            population=len(names),
        )
        x = federation.train.x
        self.rehearsed = Simulator(federation.train, task, seed=self.seed)
        self.memory = self.rehearsed.memory  # of the rehearsal; the clients' stays on the nodes
        self.samples = Samples(x[:1], federation.train.y[:1], offsets)

    @property
    def federation(self) -> Federation:
        """What is known of the data."""
        by_name: dict[str, int] = {}
        for known in self.nodes.values():
            if known.cluster is not None:
                by_name |= dict(zip(known.names, known.cluster, strict=True))
        complete = all(name in by_name for name in self.names)
        cluster = torch.tensor([by_name[name] for name in self.names]) if complete else None
        classes = self.app.schema.classes if self.app.schema else ()
        return Federation(
            self.samples,
            None,
            cluster,
            name=self.app.plan.federation_name,
            clients=tuple(self.names),
            classes=classes,
            sample_clusters=getattr(self.app.plan.algorithm, "learns", "") == "centres"
            and not self.samples.y.is_floating_point(),
        )

    @property
    def tested(self) -> bool:
        """Whether all clients have test samples of their own."""
        return all(known.tested for known in self.nodes.values())

    def check_alike(self) -> None:
        """Refuse nodes whose samples cannot be of one federation, and clients that are two."""
        first, *others = self.nodes.values()
        for other in others:
            if (other.shape, other.types) != (first.shape, first.types):
                raise DataError(
                    f"nodes hold samples of two kinds: {first.shape} for client {first.names[0]}, "
                    f"{other.shape} for client {other.names[0]}"
                )

    # Who is there

    def look(self) -> None:
        """See which nodes are there, and let new ones enrol."""
        self.looked = time.monotonic()
        online = set(self.grid.get_node_ids())
        for node in set(self.nodes) - online:
            del self.nodes[node]
        self.home = {name: node for name, node in self.home.items() if node in self.nodes}
        new = sorted(online - set(self.nodes) - self.refused)
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
        self.nodes[node] = known
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

    # Messages

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

    # What is asked

    def at(self, *address: int | str, round: int = 0, ids: Tensor | None = None) -> Clients:
        if address[0] == "round":
            self.done = round + 1
        return super().at(*address, round=round, ids=ids)

    @property
    def ids(self) -> Tensor:
        return torch.arange(len(self.names))

    def answered(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Who replied, and the fold of what they sent, in the order in which a simulator folds."""
        ids, upload = self.step(call)
        total = fold.start()
        for places in self.places(self.samples.sizes[ids]):
            part = type(upload)(*(value[places] for value in upload))
            total = fold.add(total, ids[places], part)
        return ids, total

    def step(self, call: Call) -> tuple[Tensor, Any]:
        """A client step: who replied, in order, and what they sent."""
        step, ids, round, address, message = call
        if not len(ids):
            return ids, None
        example = self.rehearse(step, ids[:1], round, message)
        spec = {name: (tuple(v.shape[1:]), v.dtype) for name, v in example._asdict().items()}
        label = step.__qualname__
        trains = address[1] in ("round", "start")  # after the seed; else it is an evaluation
        words = {"round": round, "address": list(address), "trains": trains, "part": "train"}

        def packet(own: Tensor) -> Packet:
            return self.packet("step", own, words, step, message)

        models = message.get("models")
        clusters = len(models) if isinstance(models, Tensor) else len(self.names)

        def accept(node: int, own: Tensor, reply: Packet) -> Any:
            found = checked(label, spec, len(own), reply)
            if "cluster" in found and bool((found["cluster"] >= clusters).any()):
                raise BadPacket(f"{label} knows {clusters} clusters, got another")
            if "size" in found and not torch.equal(found["size"], self.samples.sizes[own]):
                raise BadPacket("its clients have another number of samples than it said before")
            return type(example)(**found)

        answers = self.exchange(ids, packet, accept)
        for field in answers[0][1]._fields if answers and self.usual.limit else ():
            answers, outliers = self.usual.only(label, field, answers)
            for i in outliers:
                warn(
                    f"the reply of client {self.names[i]} is refused: {field} of {label} is "
                    f"more than {self.usual.limit:g} times as large as usual"
                )
            self.counts.refused += len(outliers)
        return merged(*answers)

    def score(self, serving: Serving, part: str, draws_map: str) -> tuple[Tensor, Any]:
        """How well a serving does on a part of the clients' data, and what places them on a map."""
        classes = len(self.app.schema.classes) if self.app.schema else MOST_CLASSES
        step = serving.adapt or serving.label
        words = {
            "part": part,
            "map": draws_map,
            "use": "" if step is None else ("adapt" if serving.adapt else "label"),
            "classes": classes,
        }

        def packet(own: Tensor) -> Packet:
            cluster = serving.cluster[torch.searchsorted(serving.ids, own)]
            models = serving.models
            if serving.label is None and draws_map != "losses":
                used, cluster = cluster.unique(return_inverse=True)
                models = models[used]
            extra = {"models": models, "cluster": cluster, "common": serving.models[:1]}
            made = self.packet("score", own, words, step, {})
            return Packet(made.words, {**made.tensors, **extra})

        cohort = self.rehearsed.cohort(torch.tensor([0]), 0, (self.seed, "rehearsal"))
        example = cohort.score(serving.models[:1])
        spec: Spec = {"scores": (tuple(example.shape[1:]), example.dtype)}
        if serving.label is not None:
            spec["counts"] = ((len(serving.models), classes), torch.int64)
        if draws_map:
            shared = draws_map == "losses"
            drawn = losses_or_gradients(cohort, serving.models, self.seed, shared)
            spec["map"] = (tuple(drawn.shape[1:]), drawn.dtype)
        kind = NamedTuple("Scored", [(name, Tensor) for name in spec])  # type: ignore[misc]

        def accept(node: int, own: Tensor, reply: Packet) -> Any:
            return kind(**checked("score", spec, len(own), reply, finite=False))

        return merged(*self.exchange(serving.ids, packet, accept))

    def packet(
        self,
        do: str,
        own: Tensor,
        words: dict[str, Any],
        step: Callable[..., Any] | None,
        message: dict[str, Any],
    ) -> Packet:
        """A message about clients `own` of one node."""
        tensors: dict[str, Tensor] = {"ids": own}
        plain: dict[str, Any] = {}
        asked: dict[str, Any] = {}
        if step is not None:
            step, given = unwrapped(step)
            asked = {
                "step": step.__name__,
                "of": NAMES[type(step.__self__)],  # type: ignore[attr-defined]
                "settings": asdict(step.__self__),  # type: ignore[attr-defined]
            }
            message = {**given, **message}
        for name, value in message.items():
            if isinstance(value, Each):
                cut = Part.cut(value, own)
                tensors[f"each.{name}"] = cut.rows
                if cut.index is not None:
                    used, index = cut.index.unique(return_inverse=True)
                    tensors[f"each.{name}"] = cut.rows[used]
                    tensors[f"index.{name}"] = index
            elif isinstance(value, Tensor):
                tensors[f"all.{name}"] = value
            else:
                plain[name] = value
        common = {
            "do": do,
            "names": [self.names[i] for i in own.tolist()],
            "run": self.run,
            "attempt": self.attempt,
            "rounds": self.done,
            "saved": self.saved,
            "plain": plain,
        }
        return Packet({**common, **asked, **words}, tensors)

    def rehearse(
        self, step: Callable[..., Any], ids: Tensor, round: int, message: dict[str, Any]
    ) -> Any:
        """What the step returns for one client, made here on samples of no meaning."""
        cohort = self.rehearsed.cohort(torch.tensor([0]), round, (self.seed, "rehearsal"))
        download = {n: v.of(ids) if isinstance(v, Each) else v for n, v in message.items()}
        made = step(cohort, **download)
        return type(made)(*map(dense, made))

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        counts, self.counts = self.counts, Counts()
        return {
            "refused": counts.refused,
            "silent": counts.silent,
            **{name: round(value, 3) for name, value in counts.seconds.items()},
        }


def unwrapped(step: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A client step, and arguments that it was given already."""
    if isinstance(step, partial):
        assert not step.args
        return step.func, step.keywords
    return step, {}


def warn(text: str) -> None:
    warnings.warn(text, CoterieWarning, stacklevel=3)
