"""A run: an algorithm on a federation, its folder, its outcome and its report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.channel.metering import ByteMeter
from coterie.core.algorithm import Algorithm, serve_clients
from coterie.core.errors import CoterieError, SettingError
from coterie.core.population import Population
from coterie.core.sampling import Sampling
from coterie.core.task import Task
from coterie.core.validate import at_most_clients
from coterie.data.federation import Federation
from coterie.engine.simulator import Simulator
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.scoring import SimulatedScorer
from coterie.experiment.checkpoint import run_fingerprint
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.initial import Initial, given_models
from coterie.experiment.participants import OnReply
from coterie.experiment.settings import RunSettings
from coterie.experiment.training import Training
from coterie.registry import algorithm_name
from coterie.report.sample_sheets import sample_sheets
from coterie.tensors.threads import adaptive_threads
from coterie.version import __version__

OnRound = Callable[[Record], None]


class Run:
    """An algorithm on a federation.

    After `complete`, the outcome is in `metrics`, `clusters`, `models` and `report()`. Where
    samples are clustered, `labels` [N] is the cluster of each, client after client.

    The clients are simulated on this machine unless a `population` is given, with an `evaluator`
    that scores on its data. `initial` are the models to begin with, as `given_models` takes them;
    without it, they are those of the task. `sampling` draws the participants of each round in place
    of what the settings say.
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
        population: Population | None = None,
        evaluator: Evaluator | None = None,
        lockstep: bool = False,
        initial: Initial | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        at_most_clients(settings, "per_round", len(federation))
        check_withholding(algorithm, settings)
        for part in (federation.train, federation.test):
            if part is not None:
                task.check_samples(part.x, part.y)
        self.algorithm = algorithm
        self.federation = federation
        self.task = task
        self.settings = settings
        values = {**asdict(algorithm), **asdict(settings)}  # type: ignore[call-overload]
        self.config = config or run_config(algorithm_name(algorithm), federation.name, values)
        if population is None or evaluator is None:
            population = simulator = Simulator(
                federation.train,
                task,
                seed=settings.seed,
                chunk=settings.chunk,
                device=settings.device,
            )
            scorer = SimulatedScorer(federation, simulator)
            evaluator = Evaluator(algorithm, federation, scorer, settings.protocol)
        self.initial = None if initial is None else given_models(initial, task)  # [j, d]
        self.training = Training(
            population,
            evaluator,
            task,
            settings,
            start=start,
            lockstep=lockstep,
            initial=self.initial,
            sampling=sampling,
        )
        self.folder: RunFolder | None = None
        self.metrics: dict[str, float] = {}
        self.chosen: dict[str, Any] = {}  # of several copies: which this is, and what they did

    @property
    def population(self) -> Population:
        """The clients that train."""
        return self.training.population

    @property
    def evaluator(self) -> Evaluator:
        """Who says how well the clients are served."""
        return self.training.evaluator

    @property
    def state(self) -> Any:
        """The state of the algorithm; None before the start."""
        return self.training.state

    @property
    def records(self) -> list[Record]:
        """What was recorded of each round."""
        return self.training.records

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.records)

    @property
    def warnings(self) -> list[str]:
        """The warnings so far."""
        return self.training.health.warnings

    @property
    def bytes(self) -> ByteMeter:
        """What crossed between the server and the clients."""
        return self.training.bytes

    @property
    def models(self) -> Tensor:
        """The models in use: client i is served by `models[clusters[i]]`, [k, d]."""
        return self.evaluator.scorer.own_models(self.serving)

    @cached_property
    def fingerprint(self) -> str:
        """What a checkpoint must agree on: algorithm, settings, data, network and first models."""
        return run_fingerprint(
            self.algorithm, self.settings, self.task, self.federation, self.initial
        )

    def use_ray(self, shards: int, address: str = "") -> AbstractContextManager[Any]:
        """Run the clients in `shards` Ray actors; called before anything else is done.

        The actors end with the context that is returned, or with the program.
        """
        from coterie.engine.ray import RayClients

        assert isinstance(self.population, Simulator)
        clients = RayClients(self.population, shards=shards, address=address)
        scorer = SimulatedScorer(self.federation, clients.simulator, population=clients)
        self.training.move_to(clients, replace(self.evaluator, scorer=scorer))
        return clients

    def use(self, path: Path, *, resume: bool = False) -> RunFolder:
        """Leave files in a new folder, or go on from those of an interrupted run."""
        self.folder = folder = RunFolder.open(path, self.config, resume=resume)
        before = folder.restore(self.fingerprint) if resume else None
        if before is not None:
            self.training.restore(*before)
            self.training.frames.restore(path, self.rounds)
        return folder

    def complete(self, on_round: OnRound | None = None, on_reply: OnReply | None = None) -> Run:
        """Do the rounds that are left, then evaluate the outcome.

        `on_round` is called with the record of every round, `on_reply` whenever clients have
        replied: with the number of the round, 0 for the start, and of the replies in it so far.
        """
        with adaptive_threads(self.settings.threads):
            return self._complete(on_round, on_reply)

    def _complete(self, on_round: OnRound | None, on_reply: OnReply | None) -> Run:
        self.training.participants.on_reply = on_reply
        if self.state is None:
            self._begin()
        while self.rounds < self.settings.rounds:
            record = self.training.do_round()
            if self.folder is not None:
                self._save_round(record, self.folder)
            if on_round is not None:
                on_round(record)
        self.finish()
        if self.folder is not None:
            self.write_outcome(self.folder)
            self.folder.write_report()
        return self

    def _begin(self) -> None:
        try:
            self.training.begin()
        except CoterieError:
            if self.folder is not None:
                self.folder.discard()
            raise
        if self.folder is not None:
            self._save_checkpoint(self.folder)

    def _save_round(self, record: Record, folder: RunFolder) -> None:
        if record["round"] in self.training.frames.due:
            self.training.frames.save(folder.path)
        folder.append(record)
        if folder.due(self.rounds, self.settings):
            self._save_checkpoint(folder)

    def _save_checkpoint(self, folder: RunFolder) -> None:
        folder.save(lambda: self.training.to_checkpoint(self.fingerprint))
        self.population.on_checkpoint(self.rounds)

    def finish(self) -> None:
        """Serve all clients with the last state, and judge it."""
        # A finished run that was resumed is evaluated again.
        self.evaluation = self.training.evaluation or self.evaluator.evaluate(self.state)
        self.serving = self.evaluator.serve(self.state)
        self.clusters = self.training.cluster_by_client(self.serving)
        self.labels = self.evaluator.scorer.sample_labels(self.serving)
        metrics = self.evaluator.metrics(self.evaluation, self.clusters)
        self.metrics = metrics | self.training.own_metrics

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
        serving = serve_clients(self.algorithm, self.state, unseen.at("serve"))
        return serving.cluster if serving.adapt is None else torch.full_like(serving.cluster, -1)

    @property
    def result(self) -> dict[str, Any]:
        """The outcome in numbers, as `--json` prints it."""
        training = self.training
        seconds = training.start_seconds + sum(record["seconds"] for record in self.records)
        return {
            "algorithm": self.config["algorithm"],
            "federation": self.config["federation"],
            "rounds": self.rounds,
            "seed": self.settings.seed,
            "metrics": self.metrics,
            "bytes_down": self.bytes.total("down"),
            "bytes_up": self.bytes.total("up"),
            "seconds": round(seconds, 3),
            "run_dir": None if self.folder is None else str(self.folder.path),
            "protocol": self.evaluator.protocol,
            "bytes": self.bytes.table(),
            "start_bytes_down": training.start_bytes[0],
            "start_bytes_up": training.start_bytes[1],
            "warnings": self.warnings,
            **self.chosen,
        }

    def write_outcome(self, folder: RunFolder) -> None:
        """Write the files of a finished run: its result, its clients and samples of its data."""
        folder.write("result.json", self.result)
        folder.write("clients.json", self.evaluator.tables(self.serving, self.evaluation))
        sheets = sample_sheets(self.federation, self.clusters, self.labels, self.settings.seed)
        if sheets:
            folder.write("pictures.json", sheets)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a self-contained page about this run."""
        if self.folder is not None:
            return self.folder.write_report(Path(path))
        with tempfile.TemporaryDirectory() as temporary:
            folder = RunFolder.create(Path(temporary), self.config)
            for record in self.records:
                folder.append(record)
            self.training.frames.save(folder.path)
            self.write_outcome(folder)
            return folder.write_report(Path(path))


def check_withholding(algorithm: Algorithm[Any], settings: RunSettings) -> None:
    """Refuse to withhold what an algorithm cannot do without."""
    if settings.withheld and not getattr(algorithm, "can_withhold", False):
        raise SettingError(
            f"`withhold` must be nothing for {type(algorithm).__name__}, whose server looks at "
            f"single clients, got {settings.withhold}"
        )


def run_config(
    algorithm: str, federation: str, settings: dict[str, Any], command: str = ""
) -> dict[str, Any]:
    """What config.json says of a run that starts now; no command if it was made in Python."""
    return {
        "coterie": __version__,
        "algorithm": algorithm,
        "federation": federation,
        "settings": settings,
        "command": command,
        "started": datetime.now().isoformat(timespec="seconds"),
    }
