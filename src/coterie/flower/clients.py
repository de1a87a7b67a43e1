"""The clients of a federation behind Flower's grid.

To an algorithm they are `Clients`, to a run they are a `Population`. A message goes to every node
that holds clients who are asked, one for all of them; the replies are checked, put in order of
client id and folded in the order in which the simulator folds them, whichever came first.

A reply that a client step cannot have returned is refused (replies.py). Which nodes are online, and
what becomes of a round without some of them, is the roster's business (roster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.clients import Call, Clients, Each, Fold, merge_answers, step_name
from coterie.core.cohort import Cohort
from coterie.core.layout import frozen_digest
from coterie.core.population import Purpose, RoundClients
from coterie.data.federation import Federation, Samples
from coterie.engine.chunks import Chunking
from coterie.engine.simulator import Simulator
from coterie.evaluation.client_map import losses_or_gradients
from coterie.flower.replies import Answers, NodeInfo, OutlierFilter, Spec, check_reply
from coterie.flower.roster import Roster, emit_warning
from coterie.flower.sample_kinds import made_up_samples
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, encode_arguments
from coterie.registry import algorithm_name
from coterie.tensors.lazy import dense

if TYPE_CHECKING:
    from flwr.serverapp import Grid

MAX_CLASSES = 100  # true clusters of samples, where no schema says how many there are


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
        self.rounds_done = 0
        self.rounds_saved = 0  # that the server's checkpoint holds
        self.outliers = OutlierFilter(app.network.outlier)
        node = next(iter(roster.nodes.values()))  # they all have samples of one kind
        placeholder, self.task = app.plan.prepare(placeholder_federation(app, node))
        roster.require_frozen(frozen_digest(self.task.module))
        # Carries out client steps on made-up samples, to know what shapes they return.
        self.example = Simulator(placeholder.train, self.task, seed=self.seed)
        # What the others keep is on their nodes' disks. A step that recalls what an earlier step
        # kept could not be carried out on the example client if a checkpoint did not hold this.
        self.memory = self.example.memory
        made_up = placeholder.train
        self.chunking = Chunking(self.task, made_up.sample_numbers, settings.chunk)
        # One sample stands for all where only its shape counts.
        x, y = made_up.x[:1], made_up.y[:1]
        self.samples = Samples(x, y, torch.tensor([0, *sizes.tolist()]).cumsum(0))

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
        )

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> Clients:
        """The clients `ids` (all of them if not given) in a round, behind the seam."""
        if purpose == "round":
            self.rounds_done = round + 1
        ids = self.ids if ids is None else ids
        return RoundClients(self, round, ids, (self.seed, purpose, *address), purpose)

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: who replied, and the fold of what they sent, in simulator's order."""
        ids, upload = self.run_step(call)
        total = fold.start()
        for places in self.chunking.cut(self.sizes[ids]):
            part = type(upload)(*(value[places] for value in upload))
            total = fold.add(total, ids[places], part)
        return ids, total

    def run_step(self, call: Call) -> tuple[Tensor, Any]:
        """Run a client step: who replied, in order of id, and what they sent."""
        if not len(call.ids):
            return call.ids, None
        label, example = step_name(call.step), self.example_upload(call)
        spec = {name: (tuple(v.shape[1:]), v.dtype) for name, v in example._asdict().items()}
        models = call.message.get("models")
        clusters = len(models) if isinstance(models, Tensor) else len(self.names)
        address = list(call.address)
        header = {"round": call.round, "address": address, "trains": call.trains, "part": "train"}

        def packet(ids: Tensor) -> Packet:
            return self.make_packet("step", ids, header, call.step, call.message)

        def accept(ids: Tensor, reply: Packet) -> Any:
            found = check_reply(label, spec, len(ids), reply)
            if "cluster" in found and bool((found["cluster"] >= clusters).any()):
                raise BadPacket(f"{label} knows {clusters} clusters, got another")
            if "size" in found and not torch.equal(found["size"], self.sizes[ids]):
                raise BadPacket("its clients have another number of samples than it said before")
            return type(example)(**found)

        answers = self.roster.exchange(call.ids, packet, accept)
        return merge_answers(*self.without_outliers(label, answers))

    def without_outliers(self, label: str, answers: Answers) -> Answers:
        """The answers to a step without vectors that are too large; each of these is reported."""
        for field in answers[0][1]._fields if answers and self.outliers.limit else ():
            answers, refused = self.outliers.remove_outliers(label, field, answers)
            for i in refused:
                emit_warning(
                    f"the reply of client {self.names[i]} is refused: {field} of {label} is "
                    f"more than {self.outliers.limit:g} times as large as usual"
                )
            self.roster.counts["refused"] += len(refused)
        return answers

    def score(self, serving: Serving, part: str, draws_map: str) -> tuple[Tensor, Any]:
        """How well a serving does on a part of the clients' data, and what places them on a map."""
        classes = len(self.app.schema.classes) if self.app.schema else MAX_CLASSES
        step = serving.adapt or serving.label
        use = "" if step is None else ("adapt" if serving.adapt else "label")
        header = {"part": part, "map": draws_map, "use": use, "classes": classes}

        def packet(ids: Tensor) -> Packet:
            place = torch.searchsorted(serving.ids, ids)
            cluster, models = serving.cluster[place], serving.models
            mixture = {} if serving.mixture is None else {"mixture": serving.mixture[place]}
            if serving.label is None and not mixture and draws_map != "losses":
                used, cluster = cluster.unique(return_inverse=True)
                models = models[used]
            extra = {"models": models, "cluster": cluster, "common": serving.models[:1], **mixture}
            made = self.make_packet("score", ids, header, step, {})
            return Packet(made.header, {**made.tensors, **extra})

        spec = self.score_spec(serving, draws_map, classes)
        kind = NamedTuple("Scored", [(name, Tensor) for name in spec])  # type: ignore[misc]

        def accept(ids: Tensor, reply: Packet) -> Any:
            return kind(**check_reply("score", spec, len(ids), reply, finite=False))

        return merge_answers(*self.roster.exchange(serving.ids, packet, accept))

    def score_spec(self, serving: Serving, draws_map: str, classes: int) -> Spec:
        """What the reply to a request for scores has to hold."""
        cohort = self.example_cohort(0)
        scores = cohort.score(serving.models[:1])
        spec: Spec = {"scores": (tuple(scores.shape[1:]), scores.dtype)}
        if serving.label is not None:
            spec["counts"] = ((len(serving.models), classes), torch.int64)
        if draws_map:
            drawn = losses_or_gradients(cohort, serving.models, self.seed, draws_map == "losses")
            spec["map"] = (tuple(drawn.shape[1:]), drawn.dtype)
        return spec

    def make_packet(
        self,
        action: str,
        ids: Tensor,
        header: Mapping[str, Any],
        step: Callable[..., Any] | None,
        arguments: Mapping[str, Any],
    ) -> Packet:
        """A message about clients `ids` of one node."""
        named: dict[str, Any] = {}
        if step is not None:
            if isinstance(step, partial):
                assert not step.args
                arguments = {**step.keywords, **arguments}
                step = step.func
            algorithm = step.__self__  # type: ignore[attr-defined]
            of = algorithm_name(algorithm)
            named = {"step": step.__name__, "of": of, "settings": asdict(algorithm)}
        plain, tensors = encode_arguments(arguments, ids)
        common = {
            "do": action,
            "names": [self.names[i] for i in ids.tolist()],
            "run": self.run,
            "attempt": self.attempt,
            "rounds": self.rounds_done,
            "saved": self.rounds_saved,
            "plain": plain,
        }
        return Packet({**common, **named, **header}, {"ids": ids, **tensors})

    def example_cohort(self, round: int) -> Cohort:
        """A cohort of the one client with made-up samples."""
        return self.example.cohort(torch.tensor([0]), round, (self.seed, "example"))

    def example_upload(self, call: Call) -> Any:
        """What a step returns for one client, computed here on made-up samples."""
        first = call.ids[:1]
        message = {
            n: v.rows_for(first) if isinstance(v, Each) else v for n, v in call.message.items()
        }
        upload = call.step(self.example_cohort(call.round), **message)
        return type(upload)(*map(dense, upload))

    def on_checkpoint(self, rounds: int) -> None:
        """Nodes are told with the next message what they may forget."""
        self.rounds_saved = rounds

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        return self.roster.notes()


def join_network(
    grid: Grid, app: App, *, run: str, attempt: str, clients: Mapping[str, int] | None = None
) -> Network:
    """Wait until the nodes have enrolled, and number their clients.

    `clients` are those of a run that is resumed, by number: the samples of each, by name.
    """
    roster = Roster(grid, app)
    roster.wait_for_nodes()
    sizes = roster.client_sizes() if clients is None else clients
    roster.number_clients(list(sizes))
    return Network(roster, app, torch.tensor(list(sizes.values())), run=run, attempt=attempt)


def placeholder_federation(app: App, node: NodeInfo) -> Federation:
    """One client with two made-up samples, of the shape and type that the nodes' samples have."""
    if app.schema is not None:
        return app.schema.stub(node.inputs[0].shape, node.inputs[0].dtype)
    data, made_up = app.plan.federation, made_up_samples(node.inputs, node.target)
    classes = getattr(data, "class_count", 0) or node.outputs
    return Federation(made_up, class_count=classes, scale=getattr(data, "pixel_scale", 1.0))
