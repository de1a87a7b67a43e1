"""Any algorithm on the small federation of the conformance suite, over nodes in this process."""

import itertools
import random
from dataclasses import asdict, replace
from types import SimpleNamespace

import torch
from flwr.app import Message

from coterie.checks import small_federation, task_for
from coterie.experiment.settings import RunSettings
from coterie.flower.clients import join_network
from coterie.flower.mailbox import Pace
from coterie.flower.node import Node
from coterie.flower.server import network_run
from coterie.flower.settings import NetworkSettings
from coterie.flower.wire import decode_packet, encode_packet
from coterie.registry import algorithm_name
from tests.flower.fake import FakeGrid, thirds

FASTEST = Pace(poll=0.0005, online=0.001)
SIZES = [6, 9, 12, 7, 12, 10, 8, 5, 11]


class SmallApp:
    """What server and nodes need of an app: the algorithm, the small federation and its network."""

    schema, learnt = None, False
    fingerprint = "small"

    def __init__(self, algorithm, sizes=SIZES, network=None, order=None, **settings):
        self.federation, task = small_federation(sizes, order), task_for(algorithm)
        self.network = NetworkSettings(**{"nodes": 3, **(network or {})})
        data = SimpleNamespace(class_count=None, pixel_scale=None)
        self.plan = SimpleNamespace(
            algorithm=algorithm,
            algorithm_name=algorithm_name(algorithm),
            federation=data,
            federation_name="small",
            settings=RunSettings(**settings),
            prepare=lambda federation: (federation, task),
        )
        self.task = task

    def config(self):
        return asdict(self.plan.algorithm) | asdict(self.plan.settings) | asdict(self.network)

    def data(self, path):
        return self.federation, self.task


class SmallWorker:
    """A node that answers the messages of a small app."""

    def __init__(self, app, file):
        self.app, self.file = app, file
        self.restart()

    def restart(self):
        self.node = Node(self.app, self.file)

    def __call__(self, message, context):
        packet = self.node.answer(decode_packet(message.content))
        reply = packet._replace(header={**packet.header, "startup": 0.0})
        return Message(encode_packet(reply), reply_to=message)


class SmallGrid(FakeGrid):
    """Three nodes, whose replies are lost, late or repeated as `fault(node, header)` says.

    A late reply comes when its node is asked again. A repeated message is answered twice, the
    second time by a node that was started again, and both replies come.
    """

    def __init__(self, app, folder, fault=lambda node, header: None, nodes=3):
        super().__init__(app, [])
        # Nodes that accept this app alone: of other algorithms' steps only those it is made of.
        files = [replace(file, app="small") for file in thirds(folder, nodes)]
        self.workers = {n: SmallWorker(app, file) for n, file in enumerate(files, 1)}
        self.fault = fault
        self.faults = 0
        self.uploaded = []  # what replies to steps brought: node, header of the message, tensors
        self.scored = []  # the same of replies to scorings
        self.again = []  # replies that come twice

    def push_messages(self, messages):
        messages, names = list(messages), []
        for message in messages:
            self.header = decode_packet(message.content).header
            names += super().push_messages([message])
        return names

    def deliver(self, node, name, reply):
        assert not reply.has_error(), reply.error
        kept = {"step": self.uploaded, "score": self.scored}.get(self.header["do"])
        if kept is not None:
            kept.append((node, self.header, decode_packet(reply.content).tensors))
        fault = None if kept is None else self.fault(node, self.header)
        self.faults += fault is not None
        if fault == "lost":
            return
        if fault == "late":
            reply.metadata.__dict__["_reply_to_message_id"] = name
            self.late.setdefault(node, {})[name] = reply
            return
        super().deliver(node, name, reply)
        if fault == "repeated":
            self.workers[node].restart()
            message = self.sent[-1][1]
            second = self.answer(node, message)
            first, other = (decode_packet(each.content).tensors for each in (reply, second))
            assert first.keys() == other.keys()
            # Small clients have no place on the map: NaN.
            for field, sent in first.items():
                torch.testing.assert_close(other[field], sent, rtol=0, atol=0, equal_nan=True)
            second.metadata.__dict__["_reply_to_message_id"] = name
            self.again.append(second)

    def pull_messages(self, names):
        again, self.again = self.again, []
        return [*super().pull_messages(names), *again]


def draw_faults(seed, **rates):
    """A fault of each kind with its probability, by chance; the first reply has the first kind."""
    generator, count = random.Random(seed), itertools.count()

    def fault(node, header):
        if next(count) == 0:
            return next(iter(rates))
        kind, number = None, generator.random()
        for name, rate in rates.items():
            if 0 <= number < rate:
                kind = name
            number -= rate
        return kind

    return fault


def run_over(grid, app):
    """The run of an app over a grid."""
    network = join_network(grid, app, run="small", attempt="1", pace=FASTEST)
    run = network_run(app, network)
    run.complete()
    network.finish()
    return run
