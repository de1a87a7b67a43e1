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
from typing import Any

import torch
from torch import Tensor

from coterie.channel.wrappers import replay, taken_down
from coterie.core.clients import Call, Each, Fold, Part
from coterie.core.errors import CoterieError, CoterieWarning, SettingError
from coterie.core.task import Task
from coterie.data.federation import Samples
from coterie.engine.simulator import ClientMemory, OwnMemory, Simulator
from coterie.tensors.lazy import dense


class Shard:
    """What an actor does: a simulator of some clients, and their memory."""

    def __init__(
        self, samples: Samples, task: Task, seed: int, chunk: int, first: int, population: int
    ) -> None:
        self.memory = OwnMemory(len(samples), lambda ids: ids - first)
        self.simulator = Simulator(
            samples,
            task,
            seed=seed,
            chunk=chunk,
            first=first,
            population=population,
            memory=self.memory,
        )

    def folded(
        self, shared: dict[str, Any], call: Call, fold: Fold[Any]
    ) -> tuple[Any, list[Any], list[str]]:
        """The partial fold, what wrappers took down, and warnings.

        What all shards are sent is in `shared`, the rest in the message of the call.
        """
        with warnings.catch_warnings(record=True) as caught, taken_down() as notes:
            warnings.simplefilter("always")
            whole = call._replace(message={**shared, **call.message})
            total = self.simulator.folded(whole, fold)
        ours = [str(w.message) for w in caught if issubclass(w.category, CoterieWarning)]
        return total, notes, ours

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What these clients keep, and who keeps something."""
        return self.memory.rows, self.memory.known

    def keep(self, rows: dict[str, Tensor], known: dict[str, Tensor]) -> None:
        """Take over what these clients are to have kept."""
        self.memory.rows = {name: tensor.clone() for name, tensor in rows.items()}
        self.memory.known = {name: tensor.clone() for name, tensor in known.items()}


class GatheredMemory(ClientMemory):
    """The memory of all shards as the driver sees it: fetched when looked at, sent when changed."""

    def __init__(self, population: int, actors: list[Any], bounds: list[int]) -> None:
        self.actors = actors
        self.bounds = bounds
        self.current = True  # what is here is what the shards have
        self.changed = False  # something here is newer than in the shards
        super().__init__(population)

    @property
    def rows(self) -> dict[str, Tensor]:
        self.gather()
        return self._rows

    @rows.setter
    def rows(self, rows: dict[str, Tensor]) -> None:
        self._rows = rows

    @property
    def known(self) -> dict[str, Tensor]:
        self.gather()
        return self._known

    @known.setter
    def known(self, known: dict[str, Tensor]) -> None:
        self._known = known

    def take_over(self, other: ClientMemory) -> None:
        """Begin with what clients kept before."""
        self._rows, self._known = dict(other.rows), dict(other.known)
        self.changed = True

    def keep(self, name: str, ids: Tensor, value: Tensor) -> None:
        super().keep(name, ids, value)
        self.changed = True

    def hand_out(self) -> None:
        """Send what was changed here to the shards; they are ahead of this afterwards."""
        if self.changed:
            for actor, begin, end in zip(
                self.actors, self.bounds[:-1], self.bounds[1:], strict=True
            ):
                own = [
                    {name: tensor[begin:end] for name, tensor in values.items()}
                    for values in (self._rows, self._known)
                ]
                fetched(actor.keep.remote(*own))
        self.changed = self.current = False

    def gather(self) -> None:
        """Fetch what clients keep, if it may have changed."""
        if self.current:
            return
        self.current = True
        parts = [fetched(actor.kept.remote()) for actor in self.actors]
        for which, gathered in enumerate((self._rows, self._known)):
            gathered.clear()
            for part, begin in zip(parts, self.bounds, strict=False):
                for name, tensor in part[which].items():
                    if name not in gathered:
                        gathered[name] = tensor.new_zeros(self.population, *tensor.shape[1:])
                    gathered[name][begin : begin + len(tensor)] = tensor


class Sharded(Simulator):
    """A simulator whose client steps run in Ray actors; in every other way the one it is made of.

    `address` is that of a running cluster, as `ray.init` takes it; empty: the one that
    RAY_ADDRESS names, or a new one on this machine. `shards` 0 makes one for each core.
    """

    def __init__(self, simulator: Simulator, *, shards: int = 0, address: str = "") -> None:
        if simulator.device.type != "cpu":
            raise SettingError(
                f"`device` must be cpu where clients run in Ray actors, got {simulator.device}"
            )
        ray = connected(address, shards)
        cores = max(1.0, ray.cluster_resources().get("CPU", 1.0))
        samples, first = simulator.samples, simulator.first
        count = min(shards or int(cores), len(samples))
        self.bounds = even_cuts(samples.offsets, count)
        # More shards than cores share them; an actor that asks for too much would wait forever.
        actor = ray.remote(Shard).options(num_cpus=min(1, math.floor(1000 * cores / count) / 1000))
        self.actors = [
            actor.remote(
                samples.part(begin, end),
                simulator.task,
                simulator.seed,
                simulator.chunk,
                first + begin,
                simulator.population,
            )
            for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True)
        ]
        memory = GatheredMemory(simulator.population, self.actors, self.bounds)
        memory.take_over(simulator.memory)
        self.gathered = memory
        super().__init__(
            samples,
            simulator.task,
            seed=simulator.seed,
            chunk=simulator.chunk,
            first=first,
            population=simulator.population,
            memory=memory,
        )

    def folded(self, call: Call, fold: Fold[Any]) -> Any:
        """The partial folds of all shards, merged in their order."""
        import ray

        if not self.actors:
            return super().folded(call, fold)
        self.gathered.hand_out()
        each = {name: value for name, value in call.message.items() if isinstance(value, Each)}
        shared = ray.put({n: dense(v) for n, v in call.message.items() if n not in each})
        cuts = torch.searchsorted(call.ids - self.first, torch.tensor(self.bounds)).tolist()
        waiting = []
        for actor, begin, end in zip(self.actors, cuts[:-1], cuts[1:], strict=True):
            own = call.ids[begin:end]
            if len(own):
                parts = {name: Part.cut(value, own) for name, value in each.items()}
                part = call._replace(ids=own, message=parts)
                waiting.append(actor.folded.remote(shared, part, fold))
        total = fold.start()
        for answer in waiting:
            partial, notes, said = fetched(answer)
            total = fold.merge(total, partial)
            replay(notes)
            for text in said:
                warnings.warn(text, CoterieWarning, stacklevel=2)
        return total

    def __enter__(self) -> Sharded:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(fetch=kind is None)

    def close(self, *, fetch: bool = True) -> None:
        """Let the actors go; with `fetch`, what clients kept comes back, and work goes on here."""
        import ray

        if fetch:
            self.gathered.gather()
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def connected(address: str, shards: int) -> Any:
    """The module ray, connected to a cluster."""
    if shards < 0:
        raise SettingError(f"`shards` must be at least 0, got {shards}")
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


def fetched(answer: Any) -> Any:
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


def even_cuts(offsets: Tensor, count: int) -> list[int]:
    """Where to cut clients into `count` shards of about as many samples, none without a client.

    >>> even_cuts(torch.tensor([0, 10, 20, 30, 40]), 2)
    [0, 2, 4]
    >>> even_cuts(torch.tensor([0, 100, 101, 102]), 3)
    [0, 1, 2, 3]
    """
    clients = len(offsets) - 1
    wanted = torch.arange(1, count) * float(offsets[-1]) / count
    cuts = [0, *torch.searchsorted(offsets.double(), wanted.double()).tolist(), clients]
    for i in range(1, count):
        cuts[i] = min(max(cuts[i], cuts[i - 1] + 1), clients - (count - i))
    return cuts
