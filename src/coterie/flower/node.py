"""What a node does: it holds some clients, and carries out their steps where their data are.

A node may hold one client or many. It knows them by their names; the numbers that they have in the
federation come with every message. A message asks for one of four things:

    enrol   the names of its clients, how many samples they have, and the shape of these
    step    a client step of the algorithm, on some of its clients
    score   how well given models serve its clients, on their test or validation samples
    keep    nothing: it brings the final models, to score the node's own table with
    finish  nothing any more: the run is over

Of code, a message can only name client steps of algorithms that are installed on the node: those
of coterie, and those that the node's file allows (permission.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.errors import DataError
from coterie.core.layout import frozen_digest
from coterie.data.federation import Federation
from coterie.data.tables.schema import Schema
from coterie.data.tables.table_sums import TableSums
from coterie.engine.client_memory import ClientMemory
from coterie.engine.simulator import Simulator
from coterie.evaluation.personal import FineTuning
from coterie.experiment.finetuning import make_fine_tuning
from coterie.experiment.kept_run import data_facts
from coterie.flower.final_models import keep_final_models
from coterie.flower.memory import RunMemory, check_kept
from coterie.flower.node_file import (
    FAILED,
    UNFIT,
    UNUSABLE,
    NodeFile,
    check_accepted,
    check_model,
    told_to_server,
)
from coterie.flower.node_scoring import score_clients
from coterie.flower.node_steps import NodeSteps, find_step
from coterie.flower.permission import check_app_allowed
from coterie.flower.sample_kinds import encode_kinds
from coterie.flower.schema_exchange import answer_question, own_sums, with_schema
from coterie.flower.settings import App
from coterie.flower.time_limit import time_limit
from coterie.flower.wire import BadPacket, Packet, decode_packet, encode_packet
from coterie.version import __version__

if TYPE_CHECKING:
    from flwr.app import Context, Message


class Node:
    """The clients of one node, for one app."""

    def __init__(self, app: App, file: NodeFile) -> None:
        self.app, self.allow, self.file = app, file.allow, file
        federation, self.task = app.data(file.data)
        begin, end = file.bounds(len(federation))
        if begin == end:
            raise DataError(
                f"share {file.share} of {len(federation)} clients is nobody: the data has too few"
            )
        sizes = federation.train.sizes
        ids = torch.arange(begin, end)[sizes[begin:end] >= file.smallest_client]
        self.left_out = end - begin - len(ids)  # clients with too few samples to take part
        if not len(ids):
            raise DataError(
                f"`smallest_client` must be at most {int(sizes[begin:end].max())}, the training "
                f"samples of the largest client of this node, got {file.smallest_client}"
            )
        names = client_names(federation)
        self.names = [names[i] for i in ids.tolist()]
        self.facts = {**data_facts(federation), "clients": self.names}
        self.cluster = None if federation.cluster is None else federation.cluster[ids]
        self.outputs, self.scale = federation.outputs, float(federation.scale)
        if federation.unseen:
            raise DataError(
                f"{federation.name} is tested on clients that do not train, which a network does "
                "not have; take a federation whose clients have test samples of their own"
            )
        self.parts = {name: part.of_clients(ids) for name, part in federation.parts.items()}
        self.train = self.parts["train"]
        check_model(file, self.task.layout.size)
        self.task.check_samples(self.train.x, self.train.y)
        self.selected: dict[str, int] = {}  # clients that are worked on: their numbers, by name
        self.ids = torch.arange(0)  # these numbers
        self.rows = torch.arange(0)  # where these clients lie among those of this node
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
            for name, samples in self.parts.items()
        }
        self.folder = Path(file.memory)
        self.steps = NodeSteps(self)

    @property
    def fine_tuning(self) -> FineTuning:
        """How its clients fine-tune models: as the app says, whatever a message asks for."""
        found = make_fine_tuning(self.app.plan.algorithm, self.app.plan.settings)
        if found is None:
            raise BadPacket("the clients of this app are not to fine-tune their models")
        return found

    def locate(self, ids: Tensor) -> Tensor:
        """Where clients lie among those of this node."""
        return self.rows[torch.searchsorted(self.ids, ids)]

    def answer(self, packet: Packet) -> Packet:
        """The reply to a message."""
        action = packet.get("do", str)
        actions = {
            "enrol": self.enrol,
            "step": self.run_step,
            "score": self.score,
            "keep": self.keep_models,
            "finish": self.finish,
        }
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
            "tested": "test" in self.parts,
            "outputs": self.outputs,
            "scale": self.scale,
            "frozen": frozen_digest(self.task.module),
        }
        held_out = self.parts.get("validation")
        validation = {} if held_out is None else {"validation": held_out.sizes}
        return Packet(header, {"sizes": samples.sizes, **validation})

    def run_step(self, packet: Packet) -> Packet:
        """Run a client step on some clients."""
        began = time.perf_counter()
        self.find_clients(packet)
        tensors, lost, kept = self.steps.answer(packet)
        return reply_packet(began, tensors, lost=lost, kept=kept)

    def score(self, packet: Packet) -> Packet:
        """How well models serve some clients; what they predict stays here."""
        began = time.perf_counter()
        tensors = score_clients(self, packet, self.serving_step(packet))
        return reply_packet(began, tensors, lost=[], kept=False)

    def keep_models(self, packet: Packet) -> Packet:
        """Keep the final models on this node; nothing is sent back."""
        keep_final_models(self, packet, self.serving_step(packet))
        return Packet({})

    def serving_step(self, packet: Packet) -> Any:
        """The step by which the clients of a message are served, if any; they remember all."""
        self.find_clients(packet)
        step = find_step(self, packet) if packet.get("use", str) else None
        self.run_memory(packet).read_after(self.memory, packet.get("rounds", int))
        check_kept(self.memory, self.selected, packet.tensor("kept"))
        return step

    def finish(self, packet: Packet) -> Packet:
        """The run is over, and what its clients kept is no longer needed."""
        self.run_memory(packet).finish()
        return Packet({})

    def find_clients(self, packet: Packet) -> None:
        """Select the clients that a message names and numbers."""
        ids, names = packet.tensor("ids"), packet.get("names", list)
        numbered = ids.dtype == torch.long and ids.shape == (len(names),) and len(names) > 0
        if not numbered or bool((ids.diff() <= 0).any()):
            raise BadPacket("a message must number the clients that it names, in order")
        if len(set(names)) < len(names) or not set(names) <= set(self.names):
            raise BadPacket("a message names clients that are not here")
        self.select(dict(zip(names, ids.tolist(), strict=True)))

    def select(self, clients: dict[str, int]) -> None:
        """Let these clients, numbers by name in increasing order, be those that are worked on."""
        rows = {name: row for row, name in enumerate(self.names)}
        self.selected, self.ids = clients, torch.tensor(list(clients.values()))
        self.rows = torch.tensor([rows[name] for name in clients])

    def simulator(self, packet: Packet, name: str) -> Simulator:
        """The part of the clients' samples that a message names, ready to work on."""
        part = packet.get(name, str)
        if part not in self.simulators:
            raise BadPacket(f"the clients of this node have no {part} part")
        return self.simulators[part]

    def run_memory(self, packet: Packet) -> RunMemory:
        """What clients keep in the run of a message."""
        run, attempt = packet.get("run", str), packet.get("attempt", str)
        if not (run.isalnum() and attempt.isalnum()):
            raise BadPacket("a run must have a name of letters and digits")
        began = packet.get("began", int)
        algorithm = self.app.plan.algorithm_name
        return RunMemory(
            self.folder, run, self.names, attempt=attempt, began=began, algorithm=algorithm
        )


class NodeWorker:
    """Answers the messages of all runs that come to a node."""

    def __init__(self, file: NodeFile) -> None:
        self.file = file
        self.node: Node | None = None  # of the run that was last asked about
        self.known: tuple[Mapping[str, Any], Any] = {}, None  # its settings, and schema if learnt
        self.sums: tuple[str, TableSums] | None = None  # of which app, and what is said for it

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply to a Flower message; a mistake is its text."""
        from flwr.app import Message

        reply = self.answer(context.run_config, decode_packet(message.content))
        return Message(encode_packet(reply), reply_to=message)

    def answer(self, config: Mapping[str, Any], packet: Packet) -> Packet:
        """The reply to a packet of a run with such settings.

        What is wrong with the packet is told to the server, all else is kept to the node's log.
        """
        began, told = time.perf_counter(), UNUSABLE
        try:
            with time_limit(self.file.longest_step):
                if packet.header.get("do") == "learn":
                    app, told = self.read_settings(config, None), UNFIT
                    return answer_question(self.table_sums(app), packet)
                schema = packet.header.get("schema")
                app, told = self.read_settings(config, schema), UNFIT
                if self.node is None or app.fingerprint != self.node.app.fingerprint:
                    self.node = Node(app, self.file)
                    note_left_out(self.node)
                self.known = dict(config), schema
                startup, told = time.perf_counter() - began, FAILED
                reply = self.node.answer(packet)
            return Packet({**reply.header, "startup": startup}, reply.tensors)
        except Exception as error:
            raise told_to_server(error, told) from None

    def read_settings(self, config: Mapping[str, Any], schema: Any) -> App:
        """The app with such settings, if the node's operator accepts them.

        `schema` is the one that was learnt for it, if it brings none.
        """
        if self.node is not None and (config, schema) == self.known:
            return self.node.app
        check_app_allowed(self.file.allow, config)
        app = App.from_config(config)
        if schema is not None and app.learns_schema:
            if not isinstance(schema, dict):
                raise BadPacket("the schema of a message must be a dictionary")
            app = with_schema(app, Schema.of(schema))
        check_accepted(self.file, app)
        return app

    def table_sums(self, app: App) -> TableSums:
        """What is said of this node's table for an app that brings no schema."""
        if self.sums is None or self.sums[0] != app.fingerprint:
            self.sums = app.fingerprint, own_sums(app, self.file)
        return self.sums[1]


def note_left_out(node: Node) -> None:
    """Write to the node's log how many of its clients take no part; the server is not told."""
    if node.left_out:
        print(
            f"coterie: {node.left_out} clients of this node have fewer training samples than "
            f"`smallest_client`, {node.file.smallest_client}, and take no part",
            file=sys.stderr,
            flush=True,
        )


def reply_packet(
    began: float, tensors: dict[str, Tensor], *, lost: list[int], kept: bool
) -> Packet:
    """The reply to a message that the node began to answer at this moment."""
    seconds = time.perf_counter() - began
    return Packet(
        {"seconds": seconds, "fields": list(tensors), "lost": lost, "kept": kept}, tensors
    )


def client_names(federation: Federation) -> list[str]:
    """The names of the clients; where they have none, their numbers."""
    width = len(str(len(federation)))
    return list(federation.clients) or [f"{i:0{width}d}" for i in range(len(federation))]
