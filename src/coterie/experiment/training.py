"""Training: the start and the rounds of an algorithm, each with its evaluation and its record."""

from __future__ import annotations

import time
from typing import Any, get_type_hints

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.core.algorithm import Algorithm, Serving, Start
from coterie.core.population import Population
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.scoring import Evaluation
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.folder import Record
from coterie.experiment.health import HealthMonitor
from coterie.experiment.participants import Participants
from coterie.experiment.progress import RunProgress
from coterie.experiment.settings import RunSettings
from coterie.report.map_frames import MapFrames


class Training:
    """Trains on a population of clients, round by round, and evaluates on the way."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        task: Task,
        settings: RunSettings,
        *,
        start: int,
        population: Population,
        evaluator: Evaluator,
        frames: MapFrames,
        health: HealthMonitor,
    ) -> None:
        self.algorithm = algorithm
        self.federation = federation
        self.task = task
        self.settings = settings
        self.start = start  # which of several independent starts it is
        self.frames = frames
        self.progress = RunProgress.new(len(federation), health)
        self.evaluation: Evaluation | None = None  # of the last state that was evaluated
        self.move_to(population, evaluator)

    def move_to(self, population: Population, evaluator: Evaluator) -> None:
        """Train on these clients; called before the start."""
        self.population = population
        self.evaluator = evaluator
        self.participants = Participants(population, self.settings, self.progress.bytes)

    def begin(self) -> None:
        """Let the algorithm make its first state."""
        began = time.perf_counter()
        progress, seed = self.progress, self.settings.seed
        start = Start(
            sampler=self.participants,
            task=self.task,
            clients=len(self.federation),
            # The first start is that of a run alone.
            seed=seeds.derive(seed, "another start", self.start) if self.start else seed,
            truth=self.federation.cluster,
        )
        with progress.health.record_warnings():
            progress.state = self.algorithm.init(start)
        progress.start_bytes = [progress.bytes.total("down"), progress.bytes.total("up")]
        progress.start_seconds = time.perf_counter() - began
        self.population.notes()  # those of the start do not belong to the first round

    def do_round(self) -> Record:
        """Do the next round and keep its record."""
        began = time.perf_counter()
        progress, health, t = self.progress, self.progress.health, len(self.progress.records)
        down, up = progress.bytes.total("down"), progress.bytes.total("up")
        warned = len(health.warnings)
        clients = self.participants.of_round(t)
        with health.record_warnings():
            progress.state, info = self.algorithm.round(progress.state, clients)
            moves = progress.move_clients(info)
            health.check_clusters(progress.cluster, info.clusters)
            health.check_models(progress.state)
        metrics: dict[str, float] = {}
        by_cluster: dict[str, list[float | None]] = {}
        if t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate == 0:
            with health.record_warnings():
                metrics, by_cluster = self._evaluate(t + 1)
                health.check_metrics(metrics)
        record = {
            "round": t + 1,
            "seconds": time.perf_counter() - began,
            "metrics": metrics,
            "by_cluster": by_cluster,
            "sizes": progress.cluster_sizes(info.clusters),
            "moves": moves,
            "asked": len(clients.ids),
            "answered": len(info.ids),
            "bytes_down": progress.bytes.total("down") - down,
            "bytes_up": progress.bytes.total("up") - up,
            "warnings": health.warnings[warned:],
            **self.population.notes(),
        }
        progress.records.append(record)
        return record

    def _evaluate(self, number: int) -> tuple[dict[str, float], dict[str, list[float | None]]]:
        """The metrics after so many rounds, of all clients and by cluster."""
        self.evaluation = evaluation = self.evaluator.evaluate(self.progress.state)
        # By their training loss all clients have just been assigned anew; by any other protocol
        # they are where they were when they last took part.
        anew = not self.federation.unseen and self.evaluator.protocol == "train-loss"
        cluster = self.cluster_by_client(evaluation.serving) if anew else self.progress.cluster
        if number in self.frames.due:
            everyone = evaluation.serving._replace(ids=self.population.ids)
            self.frames.add(number, *self.evaluator.map(everyone), cluster)
        metrics = self.evaluator.metrics(evaluation, cluster)
        return metrics, self.evaluator.by_cluster(evaluation)

    def last_evaluation(self) -> Evaluation:
        """How the last state does; a finished run that was resumed is evaluated again."""
        if self.evaluation is None:
            self.evaluation = self.evaluator.evaluate(self.progress.state)
        return self.evaluation

    def cluster_by_client(self, serving: Serving) -> Tensor:
        """The cluster of every client [m], -1 for one that is not served."""
        cluster = torch.full_like(self.progress.cluster, -1)
        cluster[serving.ids] = serving.cluster
        return cluster

    def to_checkpoint(self, run: str) -> Checkpoint:
        """All that the run with the fingerprint `run` needs to go on from here, bit for bit."""
        return self.progress.to_checkpoint(run, self.population.client_memory())

    def restore(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        """Go on from a checkpoint and the records of the rounds before it."""
        kind = get_type_hints(type(self.algorithm).init)["return"]
        self.progress.restore(checkpoint, records, kind)
        self.population.restore_client_memory(checkpoint.tensors)
