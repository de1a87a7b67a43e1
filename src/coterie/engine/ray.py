"""Beyond one process: the federation in shards, each held by a Ray actor.

Clients lie in the shards in order of id, as many samples in one as in another. A client step goes
to the actors; each runs it on its own clients, folds what they send, and returns the partial fold,
which the driver merges in the order of the shards. What clients keep between rounds stays in their
actor, and is fetched only where the driver looks at it: for a checkpoint, or to evaluate models
that clients make for themselves. Results are those of one process, to rounding.

This is the only place that imports ray.
"""

from __future__ import annotations

import math
import os
import warnings
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.clients import Call, Each, Fold, Traffic
from coterie.core.errors import CoterieError, CoterieWarning, SettingError
from coterie.core.population import Purpose, RoundClients
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.engine.client_memory import ClientMemory
from coterie.engine.simulator import Simulator
from coterie.tensors.lazy import dense
from coterie.tensors.threads import user_sets_threads

MOST_SHARDS = 1024  # actors, of which each is a process


class ShardReply(NamedTuple):
    """What comes back from a shard."""

    ids: Tensor  # whose replies arrived
    total: Any  # the partial fold of these
    traffic: list[Traffic]  # what the listener is to be told
    warnings: list[str]


class TrafficRecord:
    """A listener in an actor: it keeps what the one on the driver is to be told."""

    def __init__(self) -> None:
        self.traffic: list[Traffic] = []

    def on_call(self, call: Call) -> None:
        """The driver's listener was told."""

    def on_replies(self, call: Call, traffic: Traffic) -> None:
        self.traffic.append(traffic)


class Shard:
    """What an actor does: a simulator of some clients, and their memory."""

    def __init__(
        self, samples: Samples, task: Task, *, first: int, threads: int, **options: Any
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.memory = ClientMemory(len(samples), lambda ids: ids - first)
        self.simulator = Simulator(samples, task, first=first, memory=self.memory, **options)

    def collect(self, shared: dict[str, Any], call: Call, fold: Fold[Any]) -> ShardReply:
        """Run a step on these clients.

        What all shards are sent is in `shared`, the rest in the message of the call.
        """
        heard = TrafficRecord()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            whole = call._replace(message={**shared, **call.message}, listener=heard)
            ids, total = self.simulator.collect(whole, fold)
        ours = [str(w.message) for w in caught if issubclass(w.category, CoterieWarning)]
        return ShardReply(ids, total, heard.traffic, ours)

    def mark_memory(self) -> None:
        """Hold on to what these clients keep now."""
        self.memory.mark()

    def memory_tensors(self) -> dict[str, Tensor]:
        """What these clients keep."""
        return self.memory.to_tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what these clients are to have kept."""
        self.memory.restore({name: tensor.clone() for name, tensor in tensors.items()})


class ShardedMemory:
    """The memory of all shards as the driver sees it: fetched when looked at, sent when changed."""

    def __init__(self, copy: ClientMemory, actors: list[Any], bounds: list[int]) -> None:
        self.copy = copy
        self.actors = actors
        self.bounds = bounds
        self.current = True  # what is here is what the shards have
        copy.changed = True  # what is here is newer than in the shards

    def remembers(self, name: str, ids: Tensor) -> Tensor:
        self.fetch()
        return self.copy.remembers(name, ids)

    def recall(self, name: str, ids: Tensor) -> Tensor:
        self.fetch()
        return self.copy.recall(name, ids)

    def keep(self, name: str, ids: Tensor, value: Tensor) -> None:
        self.fetch()
        self.copy.keep(name, ids, value)

    def mark(self) -> None:
        """Each shard holds on to its own, so that nothing has to be sent."""
        if self.current:
            self.copy.mark()
        if not self.copy.changed:  # else the shards are sent it with the rest
            for actor in self.actors:
                get_result(actor.mark_memory.remote())

    def exchange(self) -> None:
        self.fetch()
        self.copy.exchange()

    def to_tensors(self) -> dict[str, Tensor]:
        self.fetch()
        return self.copy.to_tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.fetch()
        self.copy.restore(tensors)

    def send(self) -> None:
        """Send what was changed here to the shards; they are ahead of this afterwards."""
        if self.copy.changed:
            tensors = self.copy.to_tensors()
            for actor, (begin, end) in zip(self.actors, pairwise(self.bounds), strict=True):
                own = {name: tensor[begin:end] for name, tensor in tensors.items()}
                get_result(actor.restore.remote(own))
        self.copy.changed = self.current = False

    def fetch(self) -> None:
        """Fetch what clients keep, if it may have changed."""
        if self.current:
            return
        self.current = True
        whole: dict[str, Tensor] = {}
        for actor, begin in zip(self.actors, self.bounds, strict=False):
            for name, tensor in get_result(actor.memory_tensors.remote()).items():
                if name not in whole:
                    whole[name] = tensor.new_zeros(self.copy.count, *tensor.shape[1:])
                whole[name][begin : begin + len(tensor)] = tensor
        self.copy.restore(whole)
        self.copy.changed = False


class RayClients:
    """The clients of a simulator whose steps run in Ray actors.

    `simulator` is that of all clients on the driver: models are evaluated there. `address` is that
    of a running cluster, as `ray.init` takes it; empty: the one that RAY_ADDRESS names, or a new
    one on this machine. `shards` 0 makes one for each core.
    """

    def __init__(self, simulator: Simulator, *, shards: int = 0, address: str = "") -> None:
        if simulator.device.type != "cpu":
            raise SettingError(
                f"`device` must be cpu where clients run in Ray actors, got {simulator.device}"
            )
        ray = connect(address, shards)
        cores = max(1.0, ray.cluster_resources().get("CPU", 1.0))
        samples = simulator.samples
        count = min(shards or int(cores), len(samples))
        self.bounds = shard_bounds(samples.offsets, count)
        # More shards than cores share them; an actor that asks for too much would wait forever.
        actor = ray.remote(Shard).options(num_cpus=min(1, math.floor(1000 * cores / count) / 1000))
        self.actors = [
            actor.remote(
                samples.part(begin, end),
                simulator.task,
                first=simulator.first + begin,
                threads=0 if user_sets_threads() else int(max(1, cores // count)),
                population=simulator.population,
                seed=simulator.seed,
                chunk=simulator.chunking.clients,
            )
            for begin, end in pairwise(self.bounds)
        ]
        memory = ClientMemory(simulator.population)
        memory.restore(simulator.memory.to_tensors())
        self.memory = ShardedMemory(memory, self.actors, self.bounds)
        self.simulator = copy(simulator)
        self.simulator.memory = self.memory
        self.task = simulator.task
        self.population = simulator.population
        self.ids, self.sizes = simulator.ids, simulator.sizes

    def at(
        self, purpose: Purpose, *address: int | str, round: int = 0, ids: Tensor | None = None
    ) -> RoundClients:
        """The clients `ids` (all of them if not given) in a round, behind the seam."""
        ids = self.ids if ids is None else ids
        return RoundClients(self, round, ids, (self.simulator.seed, purpose, *address), purpose)

    def collect(self, call: Call, fold: Fold[Any]) -> tuple[Tensor, Any]:
        """Run a client step: the partial folds of all shards, merged in their order."""
        import ray

        if not self.actors:
            return self.simulator.collect(call, fold)
        self.memory.send()
        each = {name: value for name, value in call.message.items() if isinstance(value, Each)}
        shared = ray.put({n: dense(v) for n, v in call.message.items() if n not in each})
        rows = self.simulator.locate(call.ids)
        cuts = torch.searchsorted(rows, torch.tensor(self.bounds)).tolist()
        waiting = []
        for actor, (begin, end) in zip(self.actors, pairwise(cuts), strict=True):
            own = call.ids[begin:end]
            if len(own):
                parts = {name: value.for_clients(own) for name, value in each.items()}
                part = call._replace(ids=own, message=parts, listener=None)
                waiting.append(actor.collect.remote(shared, part, fold))
        total, arrived = fold.start(), [torch.arange(0)]
        for answer in waiting:
            reply: ShardReply = get_result(answer)
            total = fold.merge(total, reply.total)
            arrived.append(reply.ids)
            if call.listener is not None:
                for traffic in reply.traffic:
                    call.listener.on_replies(call, traffic)
            for text in reply.warnings:
                warnings.warn(text, CoterieWarning, stacklevel=2)
        return torch.cat(arrived), total

    def notes(self) -> dict[str, Any]:
        """What else there is to say of a round: nothing."""
        return {}

    def on_checkpoint(self, rounds: int) -> None:
        """A checkpoint holds so many rounds; no actor needs to know."""

    def on_best(self, rounds: int) -> None:
        """The best state so far is that after so many rounds; no actor needs to know."""

    def go_to(self, rounds: int) -> None:
        """Clients are as they were after so many rounds; no actor needs to know."""

    def __enter__(self) -> RayClients:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(fetch=kind is None)

    def close(self, *, fetch: bool = True) -> None:
        """Let the actors go; with `fetch`, what clients kept comes back, and work goes on here."""
        import ray

        if fetch:
            self.memory.fetch()
        for actor in self.actors:
            ray.kill(actor)
        self.actors, self.memory.actors = [], []


def connect(address: str, shards: int) -> Any:
    """The module ray, connected to a cluster."""
    if shards < 0:
        raise SettingError(f"`shards` must be at least 0, got {shards}")
    if shards > MOST_SHARDS:
        raise SettingError(f"`shards` must be at most {MOST_SHARDS}, got {shards}")
    try:
        import ray
    except ImportError:
        raise SettingError(
            "running on Ray needs the package ray: pip install 'coterie[ray]'"
        ) from None
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address or os.environ.get("RAY_ADDRESS"):
            ray.init(address=address or None, **quiet)
        else:
            ray.init(include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
    return ray


def get_result(answer: Any) -> Any:
    """The value of a reference; a mistake of the user's on a worker is raised as it is here."""
    import ray

    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CoterieError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise OSError(f"a Ray worker was lost: {error}") from error


def shard_bounds(offsets: Tensor, count: int) -> list[int]:
    """Where to cut clients into `count` shards of about as many samples, none without a client.

    >>> shard_bounds(torch.tensor([0, 10, 20, 30, 40]), 2)
    [0, 2, 4]
    >>> shard_bounds(torch.tensor([0, 100, 101, 102]), 3)
    [0, 1, 2, 3]
    """
    clients = len(offsets) - 1
    wanted = torch.arange(1, count) * float(offsets[-1]) / count
    cuts = [0, *torch.searchsorted(offsets.double(), wanted.double()).tolist(), clients]
    for i in range(1, count):
        cuts[i] = min(max(cuts[i], cuts[i - 1] + 1), clients - (count - i))
    return cuts
