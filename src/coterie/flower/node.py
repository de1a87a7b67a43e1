"""What a node does: it holds some clients, and carries out their steps where their data are.

A node may hold one client or many. It knows them by their names; the numbers that they have in the
federation come with every message. A message asks for one of three things:

    enrol   the names of its clients, how many samples they have, and the shape of these
    step    a client step of the algorithm, on some of its clients
    score   how well given models serve its clients, on their test samples

Of code, a message can only name client steps of algorithms that are installed on the node.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.clients import Call, Stacked
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, DataError, SettingError, did_you_mean
from coterie.core.layout import frozen_digest
from coterie.data.federation import Federation
from coterie.engine.client_memory import ClientMemory
from coterie.engine.simulator import Simulator
from coterie.evaluation.client_map import losses_or_gradients
from coterie.evaluation.scoring import score_by_label
from coterie.experiment.settings import make_settings, setting_names
from coterie.flower.memory import MemoryVersions
from coterie.flower.sample_kinds import encode_kinds
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet, decode_arguments, decode_packet, encode_packet
from coterie.registry import find
from coterie.version import __version__

if TYPE_CHECKING:
    from flwr.app import Context, Message

START_ALGORITHMS = ("fedavg", "one-shot")  # whose steps others use to find a start


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """What NODE.toml says of a node."""

    data: str = ""  # its table or folder, as in data = "patients.csv"; empty: as the app says
    share: str = ""  # which part of these clients are its own, as in 1/3; empty: all
    memory: str = "memory"  # the folder for what its clients keep between rounds

    @classmethod
    def read(cls, path: Path) -> NodeFile:
        """The file at `path`; other paths in it are relative to its folder."""
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingError(f"the node file {path} cannot be read: {error}") from error
        known = list(cls.__dataclass_fields__)
        for name, value in raw.items():
            if name not in known:
                near = did_you_mean(name, known) or f" (settings: {', '.join(known)})"
                raise SettingError(f"{path}: no setting of a node is named {name}{near}")
            if not isinstance(value, str):
                raise SettingError(f"{path}: `{name}` must be a text, got {value!r}")
        found = cls(**raw)
        found.bounds(1)
        home = path.resolve().parent
        own = str(home / found.data) if found.data else ""
        return replace(found, data=own, memory=str(home / found.memory))

    def bounds(self, count: int) -> tuple[int, int]:
        """Where its share of `count` clients begins and ends."""
        if not self.share:
            return 0, count
        which, slash, of = self.share.partition("/")
        if not (slash and which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
            raise SettingError(f"`share` of a node must be as in 1/3, got {self.share}")
        return (int(which) - 1) * count // int(of), int(which) * count // int(of)


class Node:
    """The clients of one node, for one app."""

    def __init__(self, app: App, file: NodeFile) -> None:
        self.app = app
        federation, self.task = app.data(file.data)
        begin, end = file.bounds(len(federation))
        if begin == end:
            raise DataError(
                f"share {file.share} of {len(federation)} clients is nobody: the data has too few"
            )
        self.names = client_names(federation)[begin:end]
        self.outputs = federation.outputs
        self.cluster = None if federation.cluster is None else federation.cluster[begin:end]
        self.train = federation.train.part(begin, end)
        self.test = None if federation.test is None else federation.test.part(begin, end)
        if federation.unseen:
            raise DataError(
                f"{federation.name} is tested on clients that do not train, which a network does "
                "not have; take a federation whose clients have test samples of their own"
            )
        self.task.check_samples(self.train.x, self.train.y)
        self.ids = torch.arange(0)  # clients that the message names, by their number
        self.rows = torch.arange(0)  # where these lie among the clients of this node
        self.memory = ClientMemory(len(self.train), self.locate)
        settings = app.plan.settings
        self.simulators = {
            name: Simulator(
                samples,
                self.task,
                seed=settings.seed,
                chunk=settings.chunk,
                memory=self.memory,
                locate=self.locate,
            )
            for name, samples in (("train", self.train), ("test", self.test))
            if samples is not None
        }
        self.folder = Path(file.memory)
        self.versions: dict[str, MemoryVersions] = {}

    def locate(self, ids: Tensor) -> Tensor:
        """Where clients lie among those of this node."""
        return self.rows[torch.searchsorted(self.ids, ids)]

    def answer(self, packet: Packet) -> Packet:
        """The reply to a message."""
        action = packet.get("do", str)
        actions = {"enrol": self.enrol, "step": self.run_step, "score": self.score}
        if action not in actions:
            raise BadPacket(f"a node is not asked to {action!r}")
        return actions[action](packet)

    def enrol(self, packet: Packet) -> Packet:
        """Which clients the node holds, and what their samples look like."""
        samples = self.train
        header = {
            "coterie": __version__,
            "app": self.app.fingerprint,
            "clients": self.names,
            "cluster": None if self.cluster is None else self.cluster.tolist(),
            "samples": encode_kinds(samples),
            "outputs": self.outputs,
            "tested": self.test is not None,
            "frozen": frozen_digest(self.task.module),
        }
        return Packet(header, {"sizes": samples.sizes})

    def run_step(self, packet: Packet) -> Packet:
        """Run a client step on some clients."""
        began = time.perf_counter()
        step = self.client_step(packet)
        self.find_clients(packet)
        trains = packet.get("trains", bool)
        versions, rounds, attempt = self.restore_memory(packet, training=trains)
        simulator = self.simulators[packet.get("part", str)]
        address = tuple(packet.get("address", list))
        if not all(isinstance(piece, int | str) for piece in address):
            raise BadPacket("the address of a step must be numbers and texts")
        stack = Stacked()
        arguments = decode_arguments(packet, self.ids)
        call = Call(step, self.ids, packet.get("round", int), address, arguments, trains)
        _, total = simulator.collect(call, stack)
        upload = stack.finish(total)
        if self.memory.changed and trains:
            versions.write(self.memory, rounds, attempt, packet.get("saved", int))
        seconds = time.perf_counter() - began
        return Packet({"seconds": seconds, "fields": list(upload._fields)}, upload._asdict())

    def score(self, packet: Packet) -> Packet:
        """How well models serve some clients; what they predict stays here."""
        began = time.perf_counter()
        self.find_clients(packet)
        self.restore_memory(packet, training=False)
        train = self.simulators["train"]
        models, cluster = packet.tensor("models"), packet.tensor("cluster")
        use, drawn = packet.get("use", str), packet.get("map", str)
        step: Any = self.client_step(packet) if use else None
        extra = decode_arguments(packet, self.ids)

        def score_labels(cohort: Cohort) -> tuple[Tensor, ...]:
            found = step(cohort, models=models, **extra)
            counts = count_clusters(found, cohort, len(models), packet.get("classes", int))
            return score_by_label(cohort, models, found), counts

        def score_models(cohort: Cohort) -> tuple[Tensor, ...]:
            place = torch.searchsorted(self.ids, cohort.ids)
            if "mixture" in packet.tensors:
                return (cohort.score_mixture(models, packet.tensor("mixture")[place]),)
            own = models[cluster[place]]
            if step is not None:
                own = step(train.cohort(cohort.ids, 0, (train.seed, "adapt")), model=own, **extra)
            return (cohort.score(own),)

        def map_rows(cohort: Cohort) -> tuple[Tensor, ...]:
            by_loss = drawn == "losses"
            common = models if by_loss else packet.tensor("common")
            return (losses_or_gradients(cohort, common, train.seed, by_loss),)

        on = self.simulators["test" if packet.get("part", str) == "test" else "train"]
        found = self.compute_by_chunk(on, "score", score_labels if use == "label" else score_models)
        answer = dict(zip(("scores", "counts"), found, strict=False))
        if drawn:
            (answer["map"],) = self.compute_by_chunk(train, "map", map_rows)
        return Packet({"seconds": time.perf_counter() - began, "fields": list(answer)}, answer)

    def compute_by_chunk(
        self, simulator: Simulator, purpose: str, compute: Callable[[Cohort], tuple[Tensor, ...]]
    ) -> list[Tensor]:
        """What `compute` returns for all clients of a message, in their order, some at a time."""
        chunks = list(simulator.chunks(self.ids))
        order = torch.cat(chunks).argsort()
        parts = [compute(simulator.cohort(ids, 0, (simulator.seed, purpose))) for ids in chunks]
        return [torch.cat(column)[order] for column in zip(*parts, strict=True)]

    def find_clients(self, packet: Packet) -> None:
        """Set which clients a message means: their ids, and by their names the rows."""
        ids, names = packet.tensor("ids"), packet.get("names", list)
        rows = {name: row for row, name in enumerate(self.names)}
        numbered = ids.dtype == torch.long and ids.shape == (len(names),)
        if not numbered or bool((ids.diff() <= 0).any()):
            raise BadPacket("a message must number the clients that it names, in order")
        if any(name not in rows for name in names):
            raise BadPacket("a message names clients that are not here")
        self.ids, self.rows = ids, torch.tensor([rows[name] for name in names])

    def restore_memory(self, packet: Packet, *, training: bool) -> tuple[MemoryVersions, int, str]:
        """Let the clients' memory be what it was at this point of the run."""
        run, attempt = packet.get("run", str), packet.get("attempt", str)
        if not (run.isalnum() and attempt.isalnum()):
            raise BadPacket("a run must have a name of letters and digits")
        if run not in self.versions:
            self.versions = {run: MemoryVersions(self.folder, run)}
        rounds = packet.get("rounds", int)
        self.versions[run].read(self.memory, rounds, attempt, training=training)
        return self.versions[run], rounds, attempt

    def client_step(self, packet: Packet) -> Any:
        """The client step that a message names: of which algorithm, with which settings.

        It is one of the app's algorithm, or of those with which others find a start.
        """
        of, name = packet.get("of", str), packet.get("step", str)
        settings = packet.get("settings", dict)
        if of not in (self.app.plan.algorithm_name, *START_ALGORITHMS):
            raise BadPacket(f"this app has no algorithm {of!r}")
        kind = find("algorithm", of)
        if set(settings) != set(setting_names(kind)):
            raise BadPacket(f"{of} has other settings")
        step = getattr(make_settings(kind, settings), name, None) if name.isidentifier() else None
        if not getattr(step, "__on_client__", False):
            raise BadPacket(f"{of} has no client step {name!r}")
        return step


class NodeWorker:
    """Answers the messages of all runs that come to a node."""

    def __init__(self, file: NodeFile) -> None:
        self.file = file
        self.node: Node | None = None  # of the run that was last asked about
        self.config: dict[str, Any] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply to a Flower message; a mistake is its text."""
        from flwr.app import Message

        reply = self.answer(context.run_config, decode_packet(message.content))
        return Message(encode_packet(reply), reply_to=message)

    def answer(self, config: Mapping[str, Any], packet: Packet) -> Packet:
        """The reply to a packet of a run with such settings."""
        began = time.perf_counter()
        if self.node is None or config != self.config:
            app = App.from_config(config)
            if self.node is None or app.fingerprint != self.node.app.fingerprint:
                self.node = Node(app, self.file)
            self.config = dict(config)
        startup = time.perf_counter() - began
        try:
            reply = self.node.answer(packet)
            return Packet({**reply.header, "startup": startup}, reply.tensors)
        except AssertionError as error:
            raise CoterieError(f"the step could not be carried out: {error}") from error


def client_names(federation: Federation) -> list[str]:
    """The names of the clients; where they have none, their numbers."""
    width = len(str(len(federation)))
    return list(federation.clients) or [f"{i:0{width}d}" for i in range(len(federation))]


def count_clusters(found: Tensor, cohort: Any, models: int, classes: int) -> Tensor:
    """How many samples of each true cluster each found cluster holds, [m, models, classes]."""
    tables = []
    for row, (_, y) in zip(found, cohort, strict=True):
        pairs = row[: len(y)] * classes + y
        tables.append(torch.bincount(pairs, minlength=models * classes).view(models, classes))
    return torch.stack(tables)
