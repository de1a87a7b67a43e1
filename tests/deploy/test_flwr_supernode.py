"""A SuperNode that is busy with a message whose run ends, or whose worker fails."""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

from coterie.deploy import flwr_supernode
from coterie.deploy.flwr_supernode import AdaptiveSleep, BusyNode, ask_again

RUN = 7


class Link:
    """What a SuperNode asks its SuperLink, which has one message, and what the worker finds."""

    def __init__(self, monkeypatch):
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state, self.store = factory.state(), factory.objectstore_factory.store()
        self.state.set_node_id(3)
        self.state.store_run(SimpleNamespace(run_id=RUN, fab_hash="x", primary_task_type="a"))
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        message = Message(RecordDict({"a": ConfigRecord({"b": 1})}), 3, "query", ttl=60.0)
        message.metadata.__dict__.update(_run_id=RUN, _message_id=message.object_id)
        self.message, self.tree = message, get_object_tree(message)
        self.objects = {}
        self.over, self.over_at = False, ""  # whether the run is over, and what finds it out
        self.sent = []
        self.busy = BusyNode()
        self.sleep = AdaptiveSleep(self.busy.check)
        monkeypatch.setattr(start_client_internal, "time", self.sleep)
        monkeypatch.setattr(flwr_supernode, "RUN_SECONDS", 0.0)
        monkeypatch.setattr(start_client_internal, "log", lambda *words: None)

    def asked(self, what):
        if self.over_at == what:
            self.over = True
        if self.over:
            raise RunNotRunningException

    def get_run(self, run_id):
        self.asked("run")

    def pull_object(self, run_id, object_id):
        self.asked("object")
        raise KeyError(object_id)

    def confirm(self, run_id, message_id):
        self.asked("confirm")

    def send(self, message, tree, seconds):
        self.asked("send")
        self.sent.append(message)
        return set(), "session"

    def fetch(self, pull_object=None):
        return self.busy.fetch(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=lambda: (self.message, self.tree),
            get_run=self.get_run,
            get_fab=None,
            pull_object=pull_object or self.pull_object,
            confirm_message_received=self.confirm,
            trusted_entities=None,
        )

    def push(self):
        """What a SuperNode does with a message that it has; it must not wait for ever."""
        words = {"state": self.state, "object_store": self.store, "send": self.send}
        pushing = threading.Thread(
            target=lambda: self.busy.push(push_object=None, **words), daemon=True
        )
        pushing.start()
        pushing.join(10)
        return not pushing.is_alive()

    def whole(self, run_id, object_id):
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

        return get_all_nested_objects(self.message)[object_id].deflate()

    def task(self):
        """What the worker may be given to do."""
        return [
            task for task in self.state.get_tasks(run_ids=[RUN]) if task.status.status != "finished"
        ]

    def nothing_is_left(self):
        return not self.task() and not self.state.msg_store and not len(self.store)


@pytest.fixture
def link(monkeypatch):
    return Link(monkeypatch)


@pytest.mark.parametrize("moment", ["object", "confirm"])
def test_a_message_whose_run_ends_while_it_is_fetched_leaves_nothing_to_the_worker(link, moment):
    # Its worker would wait two hours for the rest of the message.
    link.over_at = moment
    assert link.fetch(link.whole if moment == "confirm" else None) is None
    assert link.nothing_is_left()


def test_a_message_that_cannot_be_fetched_is_answered_with_an_error(link):
    assert link.fetch() == RUN
    assert link.push()
    assert [message.error.reason for message in link.sent] == [flwr_supernode.NOT_FETCHED]
    assert link.nothing_is_left()


@pytest.mark.parametrize("moment", ["run", "send"])
def test_a_reply_is_not_waited_for_when_its_run_is_over(link, moment):
    assert link.fetch(link.whole) == RUN
    link.over_at = moment
    if moment == "send":
        link.get_run = lambda run_id: None
        link.state.finish_task(link.task()[0].task_id, "failed", "no reply")
    assert link.push()
    assert link.nothing_is_left()


def test_a_worker_that_gives_up_a_task_is_told_to_the_server(link):
    assert link.fetch(link.whole) == RUN
    link.state.finish_task(link.task()[0].task_id, "failed", "no reply")
    assert link.push()
    assert [message.error.reason for message in link.sent] == [flwr_supernode.NOT_ANSWERED]
    assert link.nothing_is_left()


def test_a_reply_that_was_only_announced_is_not_waited_for(link):
    assert link.fetch(link.whole) == RUN
    reply = Message(RecordDict({"a": ConfigRecord({"b": 2})}), reply_to=link.message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    link.store.preregister(RUN, get_object_tree(reply))
    link.state.store_message(reply)
    link.send = lambda message, tree, seconds: ({reply.object_id}, "session")
    link.state.finish_task(link.task()[0].task_id, "failed", "killed while it was sending")
    assert link.push()
    assert link.nothing_is_left()


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves on; the list of all sleeps."""
    slept = []
    monkeypatch.setattr(flwr_supernode.time, "monotonic", lambda: 100.0 + sum(slept))
    monkeypatch.setattr(flwr_supernode.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(("refusals", "status", "asked"), [(3, 400, 4), (99, 400, 27), (1, 401, 1)])
def test_a_supernode_waits_until_the_one_before_counts_as_dead(clock, refusals, status, asked):
    requests = []

    def activate(client, request):
        requests.append(request)
        if len(requests) <= refusals:
            response = httpx.Response(status, request=httpx.Request("POST", "http://x"))
            raise httpx.HTTPStatusError("no", request=response.request, response=response)
        return "let in"

    ask = ask_again(activate)
    if refusals == 3:
        assert ask(None, "please") == "let in"
    else:
        with pytest.raises(httpx.HTTPStatusError):
            ask(None, "please")
    assert len(requests) == asked


def test_a_server_that_takes_long_to_answer_is_asked_less_often(clock):
    adaptive = AdaptiveSleep()
    clock.append(0.2)  # a request
    adaptive.sleep(3)
    assert clock[-1] == pytest.approx(1.0)
    clock.append(5.0)
    adaptive.sleep(3)
    assert clock[-1] == 3
    adaptive.sleep(0.5)  # it has a message, which it was quick to fetch
    adaptive.sleep(3)
    assert clock[-1] == 0.1


def test_the_longer_no_message_comes_the_less_often_a_supernode_asks(clock):
    adaptive = AdaptiveSleep()
    while sum(clock) < 120:
        adaptive.sleep(3)
    assert clock[:10] == [0.1] * 10  # the first second
    assert clock == sorted(clock)
    assert clock[-1] == 3
    for i, pause in enumerate(clock):  # nobody waits much longer for us than we did for them
        assert pause <= max(0.1, 0.1 * sum(clock[:i]) + 1e-9)
    adaptive.sleep(0.5)  # it has a message, and waits for the worker's reply
    assert clock[-1] == 0.02
    adaptive.sleep(3)
    assert clock[-1] == 0.1


# What Flower would have been started with, in a process of its own since it changes Flower.
STARTED = """
import json
from flwr.supernode import cli, fleet_http_connection, start_client_internal
from flwr.supercore import heartbeat
from flwr.supercore.inflatable import inflatable_utils
from flwr.common import constant
from coterie.deploy import flwr_supernode

def started():
    waits = inflatable_utils.pull_objects.__kwdefaults__
    print(json.dumps([
        fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL,
        heartbeat.HEARTBEAT_DEFAULT_INTERVAL,
        constant.HEARTBEAT_DEFAULT_INTERVAL,
        type(start_client_internal.time).__name__,
        [start_client_internal._pull_and_store_message.__name__,
         start_client_internal._push_messages.__name__],
        [waits[name] for name in ("initial_backoff", "backoff_cap", "max_time")],
    ]))

cli.flower_supernode = started
flwr_supernode.run_supernode()
"""


def test_the_waits_are_those_of_the_node_and_no_others():
    # The third is the time after which a task of the worker is given up, which stays Flower's.
    found = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [
        10,
        10,
        30,
        "AdaptiveSleep",
        ["fetch", "push"],
        [0.05, 2, 7200],
    ]
