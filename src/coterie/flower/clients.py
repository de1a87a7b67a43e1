"""The clients of a federation behind Flower's grid.

To an algorithm they are `Clients`, to a run they are what a simulator is. A message goes to every
node that holds clients who are asked, one for all of them; the replies are checked, put in order of
client id and folded in the order in which the simulator folds them, whichever came first.

A reply that a client step cannot have returned is refused (replies.py); which nodes are there, and
what becomes of a round without some of them, is the roster's business (roster.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Serving
from coterie.core.clients import Call, Clients, Each, Fold, merge_answers, step_name
from coterie.data.federation import Federation, Samples
from coterie.data.tables.columns import sort_key
from coterie.engine.simulator import Simulator
from coterie.evaluation.client_map import losses_or_gradients
from coterie.flower.enrolment import rehearsal
from coterie.flower.replies import Spec, Usual, checked
from coterie.flower.roster import Roster, warn
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet
from coterie.registry import algorithm_name
from coterie.tasks.defaults import learns_centres
from coterie.tensors.lazy import dense

if TYPE_CHECKING:
    from flwr.serverapp import Grid

MOST_CLASSES = 100  # true clusters of samples, where no schema says how many there are


class Network(Simulator):
    """The clients of all nodes, by their number in the federation."""

    def __init__(self, grid: Grid, app: App, *, run: str, attempt: str) -> None:
        self.roster = Roster(grid, app)
        self.app = app
        self.run, self.attempt = run, attempt
        self.done = 0  # rounds done
        self.saved = 0  # rounds that the server's checkpoint holds
        self.usual = Usual(app.network.outlier)

    def begin(self, names: list[str] | None = None, sizes: list[int] | None = None) -> None:
        """Wait for the nodes and number their clients; or expect those of a run that goes on."""
        self.roster.wait()
        known: dict[str, int] = {}
        for node in self.roster.known.values():
            known |= node.size_of
        if names is None:
            found = tuple(known)
            order = sorted(range(len(found)), key=sort_key(found))
            names, sizes = [found[i] for i in order], [known[found[i]] for i in order]
        assert sizes is not None
        self.roster.names = names
        self.roster.check_alike()
        first = next(iter(self.roster.known.values()))
        federation, task = self.app.plan.prepare(rehearsal(self.app, first))
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
    def names(self) -> list[str]:
        """Those of the clients, by number."""
        return self.roster.names

    @property
    def federation(self) -> Federation:
        """What is known of the data."""
        by_name: dict[str, int] = {}
        for known in self.roster.known.values():
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
            sample_clusters=learns_centres(self.app.plan.algorithm)
            and not self.samples.y.is_floating_point(),
        )

    @property
    def tested(self) -> bool:
        """Whether all clients have test samples of their own."""
        return all(known.tested for known in self.roster.known.values())

    def at(self, *address: int | str, round: int = 0, ids: Tensor | None = None) -> Clients:
        if address[0] == "round":
            self.done = round + 1
        return super().at(*address, round=round, ids=ids)

    @property
    def ids(self) -> Tensor:
        return torch.arange(len(self.names))

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Who replied, and the fold of what they sent, in the order in which a simulator folds."""
        ids, upload = self.step(call)
        total = fold.start()
        for places in self.chunking.cut(self.samples.sizes[ids]):
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
        label = step_name(step)
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

        answers = self.roster.exchange(ids, packet, accept)
        for field in answers[0][1]._fields if answers and self.usual.limit else ():
            answers, outliers = self.usual.only(label, field, answers)
            for i in outliers:
                warn(
                    f"the reply of client {self.names[i]} is refused: {field} of {label} is "
                    f"more than {self.usual.limit:g} times as large as usual"
                )
            self.roster.counts.refused += len(outliers)
        return merge_answers(*answers)

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

        return merge_answers(*self.roster.exchange(serving.ids, packet, accept))

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
                "of": algorithm_name(step.__self__),  # type: ignore[attr-defined]
                "settings": asdict(step.__self__),  # type: ignore[attr-defined]
            }
            message = {**given, **message}
        for name, value in message.items():
            if isinstance(value, Each):
                cut = value.for_clients(own)
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
        download = {n: v.rows_for(ids) if isinstance(v, Each) else v for n, v in message.items()}
        made = step(cohort, **download)
        return type(made)(*map(dense, made))

    def on_checkpoint(self, rounds: int) -> None:
        """Nodes are told with the next message what they may forget."""
        self.saved = rounds

    def notes(self) -> dict[str, Any]:
        """What happened since this was last asked, for the record of a round."""
        return self.roster.notes()


def unwrapped(step: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A client step, and arguments that it was given already."""
    if isinstance(step, partial):
        assert not step.args
        return step.func, step.keywords
    return step, {}
