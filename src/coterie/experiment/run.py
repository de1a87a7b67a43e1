"""A run: the rounds of a simulation, what they leave, and how they go on after an interruption."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from coterie.channel.lost_replies import LostReplies
from coterie.channel.metering import ByteMeter, Metering
from coterie.channel.progress import CountReplies
from coterie.core import seeds
from coterie.core.algorithm import Algorithm, Serving, Start
from coterie.core.clients import Clients
from coterie.core.errors import CoterieError
from coterie.core.population import Population
from coterie.core.task import Task
from coterie.core.validate import at_most_clients
from coterie.data.federation import Federation, Samples
from coterie.engine.simulator import Simulator
from coterie.evaluation.evaluator import Evaluator, Judged
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.health import Watch
from coterie.experiment.settings import RunSettings
from coterie.registry import algorithm_name
from coterie.report.frames import Frames, moments
from coterie.report.pictures import sheets
from coterie.version import __version__


class Run:
    """An algorithm on a federation, and where it has got to.

    After `complete`, the outcome is in `metrics`, `clusters`, `models` and `report()`. Where it is
    samples that are clustered, `labels` [N] is the cluster of each, client after client.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task,
        settings: RunSettings,
        config: dict[str, Any] | None = None,
        *,
        start: int = 0,
        simulator: Population | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        at_most_clients(settings, "per_round", len(federation))
        for part in (federation.train, federation.test):
            if part is not None:
                task.check_samples(part.x, part.y)
        self.algorithm = algorithm
        self.federation = federation
        self.task = task
        self.settings = settings
        self.config = config or described(algorithm, federation.name, settings)
        self.folder: RunFolder | None = None
        self.start = start  # which of several independent starts it is
        self.simulator: Population = simulator or Simulator(
            federation.train,
            task,
            seed=settings.seed,
            chunk=settings.chunk,
            device=settings.device,
        )
        if evaluator is None:
            assert isinstance(self.simulator, Simulator)
            evaluator = Evaluator(algorithm, federation, self.simulator, settings.protocol)
        self.evaluator = evaluator
        self.state: Any = None
        self.records: list[Record] = []
        self.watch = Watch()
        self.bytes = ByteMeter()
        self.start_bytes = [0, 0]  # down and up, before the first round
        self.start_seconds = 0.0
        self._samples = 0
        self._on_reply: Callable[[int, int], None] | None = None
        self._replies = 0  # in the round that goes on
        self.saved = 0  # rounds that the last checkpoint holds
        self.cluster = torch.full((len(federation),), -1)  # where each client was last
        self.judged: Judged | None = None  # how the last state that was evaluated did
        self.metrics: dict[str, float] = {}
        self.chosen: dict[str, Any] = {}  # of several copies: which this is, and what they did
        self.frames = Frames(federation.cluster)
        self._framed = moments(settings.rounds, settings.evaluate)

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.records)

    @property
    def warnings(self) -> list[str]:
        """What was warned of."""
        return self.watch.warnings

    @property
    def models(self) -> Tensor:
        """The models in use: client i is served by `models[clusters[i]]`, [k, d]."""
        return self.evaluator.own_models(self.serving)

    def spread(self, shards: int, address: str = "") -> AbstractContextManager[Population]:
        """Run the clients in Ray actors, `shards` of them; before anything else is done.

        They are there until the context that is returned ends, or the program does.
        """
        from coterie.engine.ray import RayClients

        assert isinstance(self.simulator, Simulator)
        clients = RayClients(self.simulator, shards=shards, address=address)
        self.simulator = clients
        self.evaluator = Evaluator(
            self.algorithm,
            self.federation,
            clients.simulator,
            self.settings.protocol,
            population=clients,
        )
        return clients

    def use(self, path: Path, *, resume: bool = False) -> None:
        """Leave files in a new folder, or go on from those of an interrupted run."""
        self.folder = RunFolder.opened(path, self.config, resume=resume)
        before = self.folder.restore(self.fingerprint) if resume else None
        if before is not None:
            self._restore(*before)
            self.frames.restore(path, self.rounds)

    def complete(
        self,
        on_round: Callable[[Record], None] | None = None,
        on_reply: Callable[[int, int], None] | None = None,
    ) -> Run:
        """Do the rounds that are left, then judge the outcome.

        `on_round` is called with the record of every round, `on_reply` whenever clients have
        replied: with the number of the round, 0 for the start, and of the replies in it so far.
        """
        self._on_reply = on_reply
        if self.state is None:
            self._begin()
        while self.rounds < self.settings.rounds:
            record = self._round(self.rounds)
            self.records.append(record)
            if self.folder is not None:
                self.folder.append(record)
                if self.folder.due(self.rounds, self.settings):
                    self._save_checkpoint(self.folder)
            if on_round is not None:
                on_round(record)
        self._finish()
        return self

    def serve(self, federation: Federation) -> Tensor:
        """The cluster that serves each client of another federation, by its training part.

        It is -1 where clients make a model of their own, as those of `local` do.
        """
        self.task.check_samples(federation.train.x, federation.train.y)
        count = len(self.federation)
        unseen = Simulator(
            federation.train,
            self.task,
            seed=self.settings.seed,
            first=count,
            population=count,
            device=self.settings.device,
        )
        serving = self.evaluator.serve(self.state, unseen)
        return serving.cluster if serving.adapt is None else torch.full_like(serving.cluster, -1)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a self-contained page about this run."""
        if self.folder is not None:
            return self.folder.write_report(Path(path))
        with tempfile.TemporaryDirectory() as temporary:
            folder = RunFolder.create(Path(temporary), self.config)
            for record in self.records:
                folder.append(record)
            self.frames.save(folder.path)
            self._save(folder)
            return folder.write_report(Path(path))

    @property
    def result(self) -> dict[str, Any]:
        """The outcome in numbers, as `--json` prints it."""
        return {
            "algorithm": self.config["algorithm"],
            "federation": self.config["federation"],
            "rounds": self.rounds,
            "seed": self.settings.seed,
            "metrics": self.metrics,
            "bytes_down": self.bytes.total("down"),
            "bytes_up": self.bytes.total("up"),
            "seconds": round(
                self.start_seconds + sum(record["seconds"] for record in self.records), 3
            ),
            "run_dir": None if self.folder is None else str(self.folder.path),
            "protocol": self.evaluator.protocol,
            "bytes": self.bytes.table(),
            "start_bytes_down": self.start_bytes[0],
            "start_bytes_up": self.start_bytes[1],
            "warnings": self.warnings,
            **self.chosen,
        }

    def sample(self, round: int, at_least: int) -> Clients:
        """The clients of a round before the first, for the start of the algorithm."""
        count = max(self._per_round(), min(at_least, len(self.federation)))
        self._samples += 1  # each call draws its own batches and loses its own replies
        ids = self._draw(count, "start", round)
        return self._clients("start", self._samples, ids=ids)

    @property
    def start_seed(self) -> int:
        """The seed of the starting models; the first start is that of a run alone."""
        seed = self.settings.seed
        return seed if self.start == 0 else seeds.derive(seed, "another start", self.start)

    @cached_property
    def fingerprint(self) -> str:
        """What a checkpoint must agree on: algorithm, settings, data and network."""
        what = [
            type(self.algorithm).__name__,
            asdict(self.algorithm),  # type: ignore[call-overload]
            asdict(self.settings),
            [self.task.layout.names, self.task.layout.shapes],
            [fingerprint(part) for part in (self.federation.train, self.federation.test)],
        ]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def _begin(self) -> None:
        began = time.perf_counter()
        try:
            with self.watch.noting():
                start = Start(
                    sampler=self,
                    task=self.task,
                    clients=len(self.federation),
                    seed=self.start_seed,
                    truth=self.federation.cluster,
                )
                self.state = self.algorithm.init(start)
        except CoterieError:
            if self.folder is not None:
                self.folder.discard()
            raise
        self.start_bytes = [self.bytes.total("down"), self.bytes.total("up")]
        self.start_seconds = time.perf_counter() - began
        self.simulator.notes()  # of the start, not of the first round
        if self.folder is not None:
            self._save_checkpoint(self.folder)

    def _round(self, t: int) -> Record:
        began = time.perf_counter()
        before = (self.bytes.total("down"), self.bytes.total("up"))
        noted = len(self.warnings)
        self._replies = 0
        clients = self._clients("round", t, round=t, ids=self._draw(self._per_round(), "round", t))
        with self.watch.noting():
            self.state, info = self.algorithm.round(self.state, clients)
            moved = info.ids[self.cluster[info.ids] != info.cluster]
            self.cluster[info.ids] = info.cluster
            self.watch.clusters(self.cluster, info.clusters)
            self.watch.models(self.state)
        numbers: dict[str, float] = {}
        by_cluster: dict[str, list[float | None]] = {}
        if t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate == 0:
            with self.watch.noting():
                numbers = self._evaluate(t + 1)
                assert self.judged is not None
                by_cluster = self.evaluator.by_cluster(self.judged)
                self.watch.metrics(numbers)
        moves: dict[int, list[int]] = {}
        for i, j in zip(moved.tolist(), self.cluster[moved].tolist(), strict=True):
            moves.setdefault(j, []).append(i)
        sizes = torch.bincount(self.cluster[self.cluster >= 0], minlength=info.clusters)
        return {
            "round": t + 1,
            "seconds": time.perf_counter() - began,
            "metrics": numbers,
            "by_cluster": by_cluster,
            "sizes": sizes.tolist(),
            "moves": moves,
            "asked": len(clients.ids),
            "answered": len(info.ids),
            "bytes_down": self.bytes.total("down") - before[0],
            "bytes_up": self.bytes.total("up") - before[1],
            "warnings": self.warnings[noted:],
            **self.simulator.notes(),
        }

    def _evaluate(self, number: int) -> dict[str, float]:
        self.judged = judged = self.evaluator.judge(self.state)
        # By their training loss all clients have just been assigned anew; by any other protocol
        # they are where they were when they last took part.
        anew = not self.federation.unseen and self.evaluator.protocol == "train-loss"
        cluster = self._by_client(judged.serving) if anew else self.cluster
        if number in self._framed:
            everybody = judged.serving._replace(ids=self.simulator.ids)
            self.frames.add(number, *self.evaluator.map(everybody), cluster)
            if self.folder is not None:
                self.frames.save(self.folder.path)
        return self.evaluator.metrics(judged, cluster)

    def _finish(self) -> None:
        if self.judged is None:  # a finished run was resumed
            self.judged = self.evaluator.judge(self.state)
        self.serving = self.evaluator.serve(self.state, self.simulator)
        self.clusters = self._by_client(self.serving)
        self.labels = self.evaluator.labels(self.serving)
        self.metrics = self.evaluator.metrics(self.judged, self.clusters)
        if self.folder is not None:
            self._save(self.folder)
            self.folder.write_report()

    def _by_client(self, serving: Serving) -> Tensor:
        """The cluster of every client [m], -1 for one that is not served."""
        cluster = torch.full_like(self.cluster, -1)
        cluster[serving.ids] = serving.cluster
        return cluster

    def _save(self, folder: RunFolder) -> None:
        folder.write("result.json", self.result)
        assert self.judged is not None
        folder.write("clients.json", self.evaluator.tables(self.serving, self.judged))
        pictures = sheets(self.federation, self.clusters, self.labels, self.settings.seed)
        if pictures:
            folder.write("pictures.json", pictures)

    def _per_round(self) -> int:
        """Clients that take part in a round."""
        count = round(self.settings.fraction * len(self.federation))
        return self.settings.per_round or max(1, count)

    def _draw(self, count: int, *address: int | str) -> Tensor:
        """`count` random clients, in order of id."""
        m = len(self.federation)
        if count >= m:
            return torch.arange(m)
        generator = seeds.generator(self.settings.seed, "participants", *address)
        return torch.randperm(m, generator=generator)[:count].sort().values

    def _clients(self, *address: int | str, ids: Tensor, round: int = 0) -> Clients:
        """Clients behind the wrappers of this run."""
        clients: Clients = self.simulator.at(*address, round=round, ids=ids)
        if self.settings.lost:
            clients = LostReplies(clients, self.settings.lost, (self.settings.seed, *address))
        clients = Metering(clients, self.bytes)
        return clients if self._on_reply is None else CountReplies(clients, self._replied)

    def _replied(self, count: int) -> None:
        self._replies += count
        if self._on_reply is not None:
            self._on_reply(0 if self.state is None else self.rounds + 1, self._replies)

    def _save_checkpoint(self, folder: RunFolder) -> None:
        folder.save(self._checkpoint)
        self.saved = self.rounds
        self.simulator.on_checkpoint(self.rounds)

    def _checkpoint(self) -> Checkpoint:
        tensors = {f"state.{name}": value for name, value in self.state._asdict().items()}
        tensors |= self.simulator.client_memory()
        tensors["cluster"] = self.cluster
        notes = {
            "bytes": [[*key, count] for key, count in self.bytes.parts.items()],
            "start_bytes": self.start_bytes,
            "start_seconds": self.start_seconds,
            "collapsed": self.watch.collapsed,
            "warnings": self.warnings,
        }
        return Checkpoint(self.rounds, self.fingerprint, tensors, notes)

    def _restore(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        tensors, notes = checkpoint.tensors, checkpoint.notes
        kind = get_type_hints(type(self.algorithm).init)["return"]
        self.state = kind(*(tensors[f"state.{name}"] for name in kind._fields))
        self.simulator.restore_client_memory(tensors)
        self.cluster = tensors["cluster"]
        self.records = records
        self.saved = len(records)
        for step, way, part, count in notes["bytes"]:
            self.bytes.parts[step, way, part] = count
        self.start_bytes = notes["start_bytes"]
        self.start_seconds = notes["start_seconds"]
        self.watch.collapsed = notes["collapsed"]
        self.watch.warnings = notes["warnings"]


def described(algorithm: Algorithm[Any], federation: str, settings: RunSettings) -> dict[str, Any]:
    """The configuration of a run that was put together in Python."""
    return {
        "coterie": __version__,
        "algorithm": algorithm_name(algorithm),
        "federation": federation,
        "settings": {**asdict(algorithm), **asdict(settings)},  # type: ignore[call-overload]
        "command": "",
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def fingerprint(part: Samples | None) -> list[Any]:
    """What tells one part of a federation from another: its sizes and a sample of its numbers."""
    if part is None:
        return []
    rows = torch.linspace(0, len(part.y) - 1, min(len(part.y), 1000), dtype=torch.float64).long()
    total = hashlib.sha256()
    for tensor in (part.offsets, part.x[rows], part.y[rows]):
        total.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return [len(part), list(part.x.shape), str(part.x.dtype), total.hexdigest()]
