"""A grid in this process: nodes that answer at once, or not, or wrongly."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from coterie.experiment.plan import make_plan
from coterie.flower.node import NodeFile, NodeWorker
from coterie.flower.settings import App, NetworkSettings

Change = Callable[[Message], Message | None]  # what becomes of a reply; None: it is lost


class FakeGrid:
    """Nodes 1, 2, ... of one app; `change[node]` is what happens to its replies."""

    def __init__(self, app: App, files: Iterable[NodeFile]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.workers = {number: NodeWorker(file) for number, file in enumerate(files, 1)}
        self.config = app.config()
        self.offline: set[int] = set()
        self.change: dict[int, Change] = {}
        self.replies: dict[str, Message] = {}
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
            reply = self.answer(node, message)
            change = self.change.get(node)
            changed = reply if change is None else change(reply)
            if changed is not None:
                changed.metadata.__dict__["_reply_to_message_id"] = name
                self.replies[name] = changed
        return found

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


def app_of(*words: str, **network: Any) -> App:
    """The app of a line of `coterie run`."""
    return App(make_plan(list(words)), NetworkSettings(**network))


def thirds(folder: Path, count: int = 3) -> list[NodeFile]:
    """Node files that share the clients of a federation."""
    return [
        NodeFile(share=f"{i}/{count}", memory=str(folder / f"memory{i}"))
        for i in range(1, count + 1)
    ]
