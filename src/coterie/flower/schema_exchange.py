"""A schema that is learnt over the network, where the app brings none: from sums of the nodes.

Before anybody enrols, the server asks the nodes that are online four questions (table_sums.py), and
makes the schema of their answers (joint_schema.py). From then on it goes with every message, so
that a node that was started again knows it as well.

    server -> node   {"do": "learn", "question": ..., what all nodes have said so far}
    node -> server   {"answer": sums over its clients}

A node whose operator does not let it answer (`schema = false` in its file) takes part all the same,
if its data fit the schema that others make.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from coterie.core.errors import CoterieError, SettingError
from coterie.data.tables.joint_schema import learn_joint_schema
from coterie.data.tables.schema import Schema, read_schema
from coterie.data.tables.table_sums import Answer, TableSums
from coterie.flower.mailbox import Mailbox, Pace, Sent, emit_warning
from coterie.flower.node_file import NOT_ACCEPTED, NodeFile
from coterie.flower.permission import NotAllowed
from coterie.flower.settings import App
from coterie.flower.wire import BadPacket, Packet

if TYPE_CHECKING:
    from flwr.serverapp import Grid

QUESTIONS = ("columns", "sums", "spread", "unit")
ATTEMPTS = 3  # at learning, each without the nodes that did not answer in the one before
KEPT_PRIVATE = "the operator of this node does not let it say anything for a schema"


class SilentNode(CoterieError):
    """A node that answered before did not answer this time."""


def with_schema(app: App, schema: Schema) -> App:
    """The app with a schema that was learnt for it."""
    return replace(app, schema=schema, learnt=True)


def app_with_schema(app: App, grid: Grid, folder: Path | None, pace: Pace) -> App:
    """The app with its schema: its own, that of the run in a folder to be resumed, or a new one."""
    if not app.learns_schema:
        return app
    if folder is not None and (folder / "schema.json").exists():
        return with_schema(app, read_schema(folder / "schema.json"))
    return with_schema(app, SchemaExchange(app, grid, pace).learn())


class SchemaExchange:
    """The questions of a server to the nodes that are online."""

    def __init__(self, app: App, grid: Grid, pace: Pace) -> None:
        self.app, self.grid, self.mailbox = app, grid, Mailbox(grid, pace)
        self.nodes: list[int] = []  # that answer
        self.needed = max(1, math.ceil(app.network.quorum * app.network.nodes))

    def learn(self) -> Schema:
        """Wait for the nodes and learn the schema; a node that fails on the way is left out."""
        self.wait_for_nodes()
        for _ in range(ATTEMPTS):
            try:
                return learn_joint_schema(self.app.plan.federation, self.ask)
            except SilentNode:
                continue
        raise CoterieError(f"the nodes did not answer: {self.mailbox.failure or 'nothing came'}")

    def wait_for_nodes(self) -> None:
        """Wait until as many nodes are online as the run needs."""
        network, deadline = self.app.network, time.monotonic() + self.app.network.patience
        while len(self.nodes) < network.nodes:
            if time.monotonic() > deadline:
                raise CoterieError(
                    f"{len(self.nodes)} of {network.nodes} nodes came in {network.patience:g} s"
                )
            self.nodes = sorted(self.grid.get_node_ids())
            if len(self.nodes) < network.nodes:
                time.sleep(self.mailbox.pace.poll)

    def ask(self, question: str, content: Answer) -> Sequence[Answer]:
        """The answers of all nodes, in the order of the nodes."""
        answers: dict[int, Answer] = {}

        def accept(sent: Sent, reply: Packet) -> None:
            answers[sent.node] = check_answer(question, content, reply.get("answer", dict))

        packet = Packet({"do": "learn", "question": question, "content": content})
        nobody = dict.fromkeys(self.nodes, torch.arange(0))
        timeout = self.app.network.timeout
        packets = dict.fromkeys(self.nodes, packet)
        waiting = self.mailbox.send(packets, nobody, timeout, "learn")
        self.mailbox.receive(waiting, accept, timeout, lambda: bool(waiting))
        silent = [node for node in self.nodes if node not in answers]
        self.nodes = sorted(answers)
        if len(self.nodes) < self.needed:
            raise CoterieError(
                f"a schema is learnt from {self.needed} nodes or more, but {len(self.nodes)} said "
                f"something: {self.mailbox.failure or 'the others did not reply'}"
            )
        if silent and question != "columns":
            raise SilentNode(f"{len(silent)} nodes did not answer")
        if silent:
            emit_warning(f"the schema is learnt without {len(silent)} nodes, which said nothing")
        return [answers[node] for node in self.nodes]


def check_answer(question: str, content: Answer, answer: Answer) -> Answer:
    """Refuse what no node can have answered."""
    checks = {"columns": check_told_columns, "sums": check_told_sums, "spread": check_told_spread}
    try:
        checks.get(question, check_told_unit)(content, answer)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadPacket(f"it must answer what was asked of its {question}") from error
    return answer


def check_told_columns(content: Answer, answer: Answer) -> None:
    """Names and kinds of columns, and of a label that is counted."""
    columns, label = answer["columns"], answer["label"]
    texts = all(
        isinstance(name, str) and kind in ("", "number", "date", "text") for name, kind in columns
    )
    names = [name for name, _ in columns]
    require(texts and len(set(names)) == len(names) > 0)
    if label is not None:
        require(label["kind"] in ("text", "bool", "whole", "number"))
        require(type(label["distinct"]) is int and label["distinct"] > 0)
        if label["kind"] != "number":
            check_told_counts(label)
            require(
                label["kind"] != "whole" or all(str(int(name)) == name for name in label["counts"])
            )


def check_told_sums(content: Answer, answer: Answer) -> None:
    """Counts that are not negative and sums that are finite, of every column that was asked for."""
    sizes = answer["sizes"]
    require(len(sizes) > 0 and all(type(size) is int and size > 0 for size in sizes))
    kinds = dict(content["columns"])
    for name, kind in kinds.items():
        if kind == "text":
            told = answer["texts"][name]
            check_told_counts(told)
            require(type(told["missing"]) is int and told["missing"] >= 0)
        else:
            known, _ = finite_pair(answer["numbers"][name])
            require(0 <= known <= sum(sizes))
    if content["classes"]:
        counts = answer["classes"]
        require(len(counts) == len(content["classes"]))
        require(all(type(count) is int and count >= 0 for count in counts))
    if content["target"] == "regression":
        require(finite_pair(answer["target"])[0] > 0)


def check_told_spread(content: Answer, answer: Answer) -> None:
    """Sums that are finite, of squares not negative."""
    pairs = [answer["numbers"][name] for name in content["means"]]
    pairs += [answer["target"]] if content["target"] == "regression" else []
    require(all(finite_pair(pair)[1] >= 0 for pair in pairs))


def check_told_unit(content: Answer, answer: Answer) -> None:
    """A number that is not negative."""
    require(math.isfinite(answer["largest"]) and answer["largest"] >= 0)


def check_told_counts(told: Answer) -> None:
    """How many rows have each category, and how many have others."""
    counts = told["counts"].items()
    require(all(isinstance(n, str) and type(c) is int and c > 0 for n, c in counts))
    require(type(told["rest"]) is int and told["rest"] >= 0)


def finite_pair(pair: Any) -> tuple[float, float]:
    """Two finite numbers."""
    one, other = pair
    require(math.isfinite(one) and math.isfinite(other))
    return one, other


def require(holds: bool) -> None:
    """Refuse an answer unless something holds of it."""
    if not holds:
        raise ValueError


def own_sums(app: App, file: NodeFile) -> TableSums:
    """What a node may say of its table, as its operator decided."""
    if not file.schema:
        raise NotAllowed(KEPT_PRIVATE)
    if not app.learns_schema:
        raise BadPacket("the app has a schema, so that nothing of a table is asked for")
    if not file.data:
        raise SettingError('a node of this app needs its own table: data = "FILE" in its file')
    settings = replace(app.plan.federation, path=file.data)  # never one that the server names
    if file.client and settings.client != file.client:
        raise NotAllowed(NOT_ACCEPTED)
    named = {settings.client, *settings.columns, *settings.split_columns}
    if file.columns and not named <= file.columns:
        raise NotAllowed(NOT_ACCEPTED)
    seed, least = app.plan.settings.data_seed, file.schema_rows
    found = TableSums(
        settings,
        seed,
        allowed=file.columns,
        least=least,
        smallest=file.smallest_client,
        bounds=file.bounds,
    )
    if len(found.clients.rows) < least:
        raise NotAllowed(KEPT_PRIVATE)
    return found


def answer_question(sums: TableSums, packet: Packet) -> Packet:
    """What a node says to a question of the server."""
    question, content = packet.get("question", str), packet.get("content", dict)
    if question not in QUESTIONS:
        raise BadPacket(f"a node is not asked for {question!r} of its table")
    if question == "columns":
        return Packet({"answer": sums.columns()})
    try:
        answer: Answer = getattr(sums, question)(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadPacket(f"the question for {question} is damaged") from error
    return Packet({"answer": answer})


def describe_sums(app: App, file: NodeFile) -> list[str]:
    """What a node would say of its table, in lines: names that leave it, and how much is kept."""
    sums = own_sums(app, file)
    told = sums.columns()
    lines = [f"  clients   {len(sums.clients.names)}"]
    lines += [f"  columns   {', '.join(name for name, _ in told['columns'])}"]
    if told["label"] is not None and "counts" in told["label"]:
        label = told["label"]
        hidden = f" ({label['rest']} rows of classes that are not named)" if label["rest"] else ""
        lines.append(f"  classes   {', '.join(sorted(label['counts'])) or 'none named'}{hidden}")
    columns = [[name, kind] for name, kind in told["columns"] if kind == "text"]
    if columns:
        texts = sums.sums({"target": "", "classes": [], "columns": columns})["texts"]
        for name, found in texts.items():
            hidden = f" ({found['rest']} rows of others)" if found["rest"] else ""
            lines.append(f"  {name}: {', '.join(sorted(found['counts'])) or 'none named'}{hidden}")
    return lines
