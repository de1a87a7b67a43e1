"""Every algorithm over two shards, without Ray: what goes to them and comes back is pickled."""

import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from coterie import checks, simulate
from tests.test_conformance import CASES


class Actor:
    """Does in this process what an actor does in another one, on copies of what is sent.

    What it is made of is not copied: Ray can send functions that pickle cannot.
    """

    def __init__(self, kind, *arguments, **options):
        self.held = kind(*arguments, **options)

    def __getattr__(self, name):
        method = getattr(self.held, name)
        return SimpleNamespace(remote=lambda *arguments: copied(method(*copied(arguments))))


def copied(value):
    return pickle.loads(pickle.dumps(value))


class Options(SimpleNamespace):
    """A class whose objects are actors, whatever is asked for them."""

    def options(self, **_):
        return self

    def remote(self, *arguments, **options):
        return Actor(self.kind, *arguments, **options)


@pytest.fixture
def shards(monkeypatch):
    ray = ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.cluster_resources = lambda: {"CPU": 2.0}
    ray.remote = lambda kind: Options(kind=kind)
    ray.put = copied
    ray.get = lambda answer: answer
    ray.kill = lambda actor: None
    ray.exceptions = SimpleNamespace(RayTaskError=KeyError, RayActorError=KeyError)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_result_of_one_process(name, shards):
    data, algorithm = checks.small_federation(checks.RAGGED), CASES[name]
    settings = {"rounds": 2, "fraction": 0.8, "lost": 0.2}
    one, other = (
        simulate(algorithm, data, checks.task_for(algorithm), **settings, **split)
        for split in ({}, {"shards": 2})
    )
    checks.assert_same(one, other)
    assert torch.equal(one.training.cluster, other.training.cluster)
    assert one.bytes.table() == other.bytes.table()
    assert [r["answered"] for r in one.records] == [r["answered"] for r in other.records]
