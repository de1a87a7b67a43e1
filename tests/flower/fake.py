"""A grid in this process: nodes that answer at once, or not, or wrongly; and runs on it."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from coterie.core.errors import CoterieWarning
from coterie.evaluation.metrics import plain_name
from coterie.experiment.plan import make_plan
from coterie.flower.mailbox import Pace
from coterie.flower.node import NodeFile, NodeWorker
from coterie.flower.server import run_server
from coterie.flower.settings import App, NetworkSettings
from coterie.flower.wire import Packet, decode_packet, encode_packet

DIGITS = ["rotated-digits", "clients=6", "samples=20", "hidden=8", "steps=2"]
IFCA = ["ifca", *DIGITS, "k=2", "start=random", "rounds=3"]
Change = Callable[[Message], Message | None]  # what becomes of a reply; None: it is lost
FAST = Pace(poll=0.001, online=0.01)


class FakeGrid:
    """Nodes 1, 2, ... of one app; `change[node]` is what happens to its replies."""

    def __init__(self, app: App, files: Iterable[NodeFile]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.workers = {number: NodeWorker(file) for number, file in enumerate(files, 1)}
        self.config = app.config()
        self.offline: set[int] = set()
        self.change: dict[int, Change] = {}
        self.replies: dict[str, Message] = {}
        self.late: dict[int, dict[str, Message]] = {}  # replies that come with a node's next one
        self.sent: list[tuple[int, Message]] = []

    def get_node_ids(self) -> list[int]:
        return [node for node in self.workers if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            name = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.sent.append((node, message))
            found.append(name)
            if node in self.offline:
                continue
            self.deliver(node, name, self.answer(node, message))
        return found

    def deliver(self, node: int, name: str, reply: Message) -> None:
        """Let the reply to a message come, as it is or changed."""
        self.replies |= self.late.pop(node, {})
        change = self.change.get(node)
        changed = reply if change is None else change(reply)
        if changed is not None:
            changed.metadata.__dict__["_reply_to_message_id"] = name
            self.replies[name] = changed

    def answer(self, node: int, message: Message) -> Message:
        context = Context(
            run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config=self.config
        )
        try:
            return self.workers[node](message, context)
        except Exception as error:
            return Message(Error(code=1, reason=str(error)), reply_to=message)

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


def make_app(*words: str, **network: Any) -> App:
    """The app of a line of `coterie run`."""
    return App(make_plan(list(words)), NetworkSettings(**network))


def thirds(folder: Path, count: int = 3) -> list[NodeFile]:
    """Node files that share the clients of a federation, however small these are."""
    return [
        NodeFile(share=f"{i}/{count}", memory=str(folder / f"memory{i}"), smallest_client=1)
        for i in range(1, count + 1)
    ]


def simulated(words):
    plan = make_plan(words)
    run = plan.run(plan.config())
    run.complete()
    return run


def deployed(tmp_path, words, change=None, grid=None, attempt="1", pace=FAST, **settings):
    """A run over three nodes, node i with `change[i]` on its replies to steps."""
    app = make_app(
        *words,
        out=str(tmp_path / "run"),
        **{"nodes": 3, "timeout": 0.2 if change else 10.0, **settings},
    )
    grid = grid or FakeGrid(app, thirds(tmp_path))
    grid.config = app.config()
    grid.change = {node: only_steps(each) for node, each in (change or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        return run_server(grid, app.config(), attempt, pace=pace)


def only_steps(change):
    """The change, on replies that bring models only: a node must enrol before it can misbehave."""

    def changed(reply):
        assert not reply.has_error(), reply.error
        tensors = decode_packet(reply.content).tensors
        trained = any(value.is_floating_point() for value in tensors.values())
        return change(reply) if trained and "scores" not in tensors else reply

    return changed


def alike(one, other):
    for name, value in one.state._asdict().items():
        torch.testing.assert_close(value, getattr(other.state, name), rtol=1e-6, atol=1e-6)
    assert torch.equal(one.clusters, other.clusters)


RANKED = ("auc", "average_precision", "auc_macro", "average_precision_macro")


def metrics_alike(one, other, rel=1e-5):
    """Whether metrics are equal to rounding; those of histograms of few samples, roughly."""
    binned = {name for name in other if plain_name(name) in RANKED}
    near = {name: other[name] for name in binned} == pytest.approx(
        {name: one.get(name) for name in binned}, abs=0.1
    )
    exact = [{n: v for n, v in each.items() if n not in binned} for each in (one, other)]
    return near and exact[0] == pytest.approx(exact[1], rel=rel, abs=1e-9)


def edited(reply, edit):
    """A reply with another header or other tensors."""
    packet = decode_packet(reply.content)
    header, tensors = dict(packet.header), dict(packet.tensors)
    edit(header, tensors)
    reply.content = encode_packet(Packet(header, tensors))
    return reply


def an_error(reply):
    return Message(Error(code=1, reason="out of memory"), reply_to=message_of(reply))


def message_of(reply):
    reply.metadata.__dict__["_message_id"] = "any"
    return reply


def silence(reply):
    return None
