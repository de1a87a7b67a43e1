"""Training: the start and the rounds of an algorithm, each with its evaluation and its record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.channel.metering import ByteMeter
from coterie.core import seeds
from coterie.core.algorithm import (
    Algorithm,
    Info,
    Start,
    check_least_samples,
    first_state,
    next_state,
    traits_of,
)
from coterie.core.errors import CoterieError, SettingError
from coterie.core.population import Population
from coterie.core.sampling import Sampling
from coterie.core.state import annotated_state, describe_state, rebuild_state, state_tensors
from coterie.core.task import Task
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.metrics import FIXED_METRICS, OF_PROBABILITIES
from coterie.evaluation.quality import quality_metrics
from coterie.experiment.checkpoint import Checkpoint
from coterie.experiment.early_stopping import EarlyStopping
from coterie.experiment.finetuning import make_fine_tuning
from coterie.experiment.folder import Record
from coterie.experiment.health import HealthMonitor
from coterie.experiment.outcome import Outcome, cluster_by_client
from coterie.experiment.participants import Participants
from coterie.experiment.settings import RunSettings
from coterie.experiment.threats import detection_scores, largest_share
from coterie.report.map_frames import MapFrames, frame_rounds


class LastRound(NamedTuple):
    """What the last round left, while the state is that of the best one."""

    state: Any  # of the algorithm
    own_metrics: dict[str, float]


class Training:
    """Trains on a population of clients, round by round, and evaluates on the way.

    Where clients hold out a validation part, what is left in the end is the state of the best round
    (`keep_best`). A copy of a run in `lockstep` with others leaves no frames of the map.
    """

    def __init__(
        self,
        population: Population,
        evaluator: Evaluator,
        task: Task,
        settings: RunSettings,
        *,
        start: int,
        lockstep: bool,
        initial: Tensor | None,
        sampling: Sampling | None = None,
    ) -> None:
        self.algorithm = evaluator.algorithm
        self.federation = evaluator.federation
        self.task = task
        self.settings = settings
        self.sampling = sampling  # of participants; None: as the settings say
        self.start = start  # which of several independent starts it is
        self.lockstep = lockstep
        self.initial = initial  # [j, d] the models to begin with; None: those of the task
        due = set[int]() if lockstep else frame_rounds(settings.rounds, settings.evaluate)
        self.frames = MapFrames(self.federation.cluster, due)
        self._outcome: Outcome | None = None  # of the state, once somebody asked for it
        # All that changes from round to round, and that a checkpoint holds:
        self.state: Any = None  # of the algorithm; None before the start
        self.cluster = torch.full((len(self.federation),), -1)  # the last known of each client
        self.records: list[Record] = []  # one for each round
        self.health = HealthMonitor(lockstep=lockstep)
        self.bytes = ByteMeter()
        self.own_metrics: dict[str, float] = {}  # the last of each that the algorithm told
        self.stopping = EarlyStopping(settings.early_stopping)
        self.last: LastRound | None = None  # None: the state is that of the last round
        self.start_bytes = [0, 0]  # down and up, before round 1
        self.start_seconds = 0.0
        self.teachers: list[int] = []  # the clients whose training made the first models
        self.move_to(population, evaluator)

    def move_to(self, population: Population, evaluator: Evaluator) -> None:
        """Train on these clients; called before the start."""
        self.population = population
        tuning = make_fine_tuning(self.algorithm, self.settings)
        self.evaluator = replace(evaluator, withheld=self.settings.withheld, tuning=tuning)
        self.participants = Participants(
            population, self.settings, self.bytes, self.sampling, evaluator.honest.attackers
        )

    def begin(self) -> None:
        """Let the algorithm make its first state."""
        began = time.perf_counter()
        check_least_samples(self.algorithm, self.population.sizes)
        start = self._first()
        if self.settings.wary and getattr(self.algorithm, "start", "") == "farthest":
            with self.health.record_warnings():
                self.health.warn_of_farthest()
        with self.health.record_warnings():
            self.state = first_state(self.algorithm, start)
        if self.initial is not None and not start.asked:
            name = type(self.algorithm).__name__
            raise SettingError(f"`initial` must be left out: {name} begins with no model")
        self.teachers = start.teachers
        attackers = self.participants.attackers
        if attackers is not None and self.teachers:
            self.own_metrics["attacking_teachers"] = float(attackers[self.teachers].sum())
        self.participants.take_excluded()  # in the start; rounds have records of their own
        self.start_bytes = [self.bytes.total("down"), self.bytes.total("up")]
        self.start_seconds = time.perf_counter() - began
        self.population.notes()  # those of the start do not belong to the first round

    def _first(self) -> Start:
        """What the algorithm begins with."""
        seed, copies = self.settings.seed, self.settings.starts
        start = Start(
            sampler=self.participants,
            task=self.task,
            clients=len(self.federation),
            withheld=self.settings.withheld,
            # The first start is that of a run alone.
            seed=seeds.derive(seed, "another start", self.start) if self.start else seed,
            wary=self.settings.wary,
            truth=self.federation.cluster,
            parameters=self.federation.truth,
            initial=self.initial,
        )
        if copies > 1 and start.brings_weights:
            raise SettingError(
                f"`starts` must be 1 where the network or `initial` brings the weights, for all "
                f"starts would be alike, got {copies}"
            )
        return start

    @property
    def outcome(self) -> Outcome:
        """What the state is worth."""
        if self.state is None:
            raise CoterieError("a run has models from its start on: call `complete` first")
        if self._outcome is None:
            self._outcome = Outcome(self.evaluator, self.state, self.own_metrics)
        return self._outcome

    @property
    def diverged(self) -> bool:
        """Whether training has failed: models are no longer finite, and nobody attacks them."""
        return not self.health.finite and self.settings.attack == "none"

    @property
    def over(self) -> bool:
        """Whether there is no round to do any more."""
        done = len(self.records) >= self.settings.rounds
        return done or self.diverged or self.stopping.over

    @property
    def best_round(self) -> int | None:
        """The best round so far by the validation loss; None without a validation part."""
        return None if self.stopping.best is None else self.stopping.best.round

    def keep_best(self) -> None:
        """Let the state be that of the best round, and clients remember what they did then."""
        best = self.stopping.best
        if best is not None and self.last is None and best.round < len(self.records):
            self.last = LastRound(self.state, self.own_metrics)
            self._exchange(best.state, best.own_metrics, best.round)

    def return_to_last(self) -> None:
        """Let the state be that of the last round again, to go on from."""
        if self.last is not None:
            state, own_metrics = self.last
            self.last = None
            self._exchange(state, own_metrics, len(self.records))

    def _exchange(self, state: Any, own_metrics: dict[str, float], rounds: int) -> None:
        self.state, self.own_metrics, self._outcome = state, own_metrics, None
        self.population.memory.exchange()
        self.population.go_to(rounds)

    def do_round(self) -> Record:
        """Do the next round and keep its record."""
        self.return_to_last()
        began = time.perf_counter()
        t, warned = len(self.records), len(self.health.warnings)
        self._outcome = None
        down, up = self.bytes.total("down"), self.bytes.total("up")
        clients = self.participants.of_round(t)
        with self.health.record_warnings():
            self.state, info = next_state(self.algorithm, self.state, clients)
            moves = self._move_clients(info)
            self.health.check_clusters(self.cluster, info.clusters)
            self.health.check_models(state_tensors(self.state).values())
        metrics: dict[str, float] = {}
        by_cluster: dict[str, list[float | None]] = {}
        scored = None
        if t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate == 0:
            with self.health.record_warnings():
                metrics, by_cluster = self._evaluate(t + 1)
                # An infinite loss comes before models that are: only in the end nothing follows it.
                last = t + 1 == self.settings.rounds and self.task.predicts
                self.health.check_metrics(metrics, infinite=last)
            scored = self.outcome.evaluation.scored
        own = algorithm_metrics(self.algorithm, info, metrics)
        excluded = self._excluded(info)
        own |= self._threat_metrics(clients.ids, info, excluded)
        counted, sizes = self._sizes(info)
        self.own_metrics |= own
        if scored is not None:
            self._compare(t + 1)
        record = {
            "round": t + 1,
            "seconds": time.perf_counter() - began,
            "metrics": metrics | own,
            "by_cluster": by_cluster,
            **({} if self.best_round is None else {"best_round": self.best_round}),
            "sizes": sizes,
            "counted": counted,
            "moves": moves,
            "asked": len(clients.ids),
            "answered": len(info.ids),
            **({} if excluded is None else {"excluded": excluded}),
            "scored": scored,
            "bytes_down": self.bytes.total("down") - down,
            "bytes_up": self.bytes.total("up") - up,
            "warnings": self.health.warnings[warned:],
            **self.population.notes(),
        }
        self.records.append(record)
        return record

    def _compare(self, number: int) -> None:
        """Compare the state after so many rounds with the best one, by the validation loss."""
        validation = self.outcome.evaluation.validation
        if validation is None or not self.health.finite:
            return
        sizes = self.evaluator.scorer.sizes("validation")
        if self.stopping.watch(number, validation, sizes, self.state, self.own_metrics):
            self.population.memory.mark()
            self.population.on_best(number)

    def _sizes(self, info: Info) -> tuple[str, list[int]]:
        """What is counted, clients or samples, and how many of these each cluster has.

        Where the algorithm knows the weights of clusters and no cluster of a client, clients are
        counted by the cluster's share of the weight. If samples are clustered, without anything
        being withheld, the weights are samples.
        Where it knows those of clients although samples are clustered, samples are counted after
        an evaluation: those that were scored.
        """
        if info.cluster is None and info.weights is not None:
            if not self.evaluator.withheld and not self.task.predicts:
                return "samples", info.weights.round().long().tolist()
            share = info.weights / info.weights.sum().clamp_min(torch.finfo(torch.float32).tiny)
            return "clients", (len(info.ids) * share).round().long().tolist()
        samples = None if self._outcome is None else self._outcome.evaluation.samples
        known = self.cluster[self.cluster >= 0] if samples is None else samples.found
        counted = "clients" if samples is None else "samples"
        return counted, torch.bincount(known, minlength=info.clusters).tolist()

    def _excluded(self, info: Info) -> list[int] | None:
        """Whom the screen and the algorithm left out in this round; None where neither does."""
        if self.participants.screen is None and info.excluded is None:
            return None
        own = [] if info.excluded is None else info.excluded.tolist()
        return sorted({*self.participants.take_excluded(), *own})

    def _threat_metrics(
        self, asked: Tensor, info: Info, excluded: list[int] | None
    ) -> dict[str, float]:
        """How well attackers are kept out, and how near they are to a majority of a cluster."""
        attackers = self.participants.attackers
        found = {} if excluded is None else detection_scores(asked, excluded, attackers)
        share = None if attackers is None else largest_share(info, attackers, excluded or ())
        spread = self.participants.spread
        if spread is not None and spread.index is not None:
            found["davies_bouldin_sent"], spread.index = spread.index, None
        if share is not None:
            found["attacker_share"] = share
            with self.health.record_warnings():
                self.health.check_attackers(share)
        return found

    def _move_clients(self, info: Info) -> dict[int, list[int]]:
        """Update the clusters of the clients that answered; those that changed, by new cluster."""
        if info.cluster is None:
            return {}
        moved = info.ids[self.cluster[info.ids] != info.cluster]
        self.cluster[info.ids] = info.cluster
        moves: dict[int, list[int]] = {}
        for i, j in zip(moved.tolist(), self.cluster[moved].tolist(), strict=True):
            moves.setdefault(j, []).append(i)
        return moves

    def _evaluate(self, number: int) -> tuple[dict[str, float], dict[str, list[float | None]]]:
        """The metrics after so many rounds, of all clients and by cluster."""
        evaluation = self.outcome.evaluation
        # By their training loss all clients have just been assigned anew; by any other protocol
        # they are where they were when they last took part.
        anew = not self.federation.unseen and self.evaluator.protocol == "train-loss"
        found = evaluation.everybody
        cluster = cluster_by_client(found, len(self.federation)) if anew else self.cluster
        if number in self.frames.due and not self.evaluator.withheld:
            self.frames.add(number, *self.evaluator.map(found), cluster)
        metrics = self.evaluator.metrics(evaluation, cluster)
        if self.settings.metric in OF_PROBABILITIES:
            metrics |= quality_metrics(self.evaluator.quality(evaluation))
        return metrics, self.evaluator.by_cluster(evaluation)

    def to_checkpoint(self, run: str) -> Checkpoint:
        """All that the run with the fingerprint `run` needs to go on from here, bit for bit."""
        if self.last is not None:  # a copy that has come to its end before the others
            self.return_to_last()
            checkpoint = self.to_checkpoint(run)
            self.keep_best()
            return checkpoint
        tensors = {f"state.{path}": tensor for path, tensor in state_tensors(self.state).items()}
        tensors |= self.population.memory.to_tensors()
        tensors["cluster"] = self.cluster
        best, best_notes = self.stopping.to_checkpoint(self.algorithm, self.settings.rounds)
        tensors |= best
        notes = {
            "state": describe_state(self.state, self.algorithm),
            "bytes": [[*key, count] for key, count in self.bytes.parts.items()],
            "start_bytes": self.start_bytes,
            "start_seconds": self.start_seconds,
            "teachers": self.teachers,
            "metrics": self.own_metrics,
            "collapsed": self.health.collapsed,
            "warnings": self.health.warnings,
            **({} if self.health.finite else {"finite": False}),
            **best_notes,
        }
        return Checkpoint(len(self.records), run, tensors, notes)

    def restore(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        """Go on from a checkpoint and the records of the rounds before it."""
        tensors, notes = checkpoint.tensors, checkpoint.notes
        structure = notes.get("state") or annotated_state(self.algorithm)
        self.state = rebuild_state(structure, tensors, self.algorithm, "state")
        self.cluster = tensors["cluster"]
        self.records = records
        for step, way, part, count in notes["bytes"]:
            self.bytes.parts[step, way, part] = count
        self.start_bytes = notes["start_bytes"]
        self.start_seconds = notes["start_seconds"]
        self.teachers = notes.get("teachers", [])
        self.own_metrics = notes.get("metrics", {})
        self.health.collapsed = notes["collapsed"]
        self.health.warnings = [*notes["warnings"], *self.health.warnings]  # now of going on
        self.health.finite = notes.get("finite", True)
        self.population.memory.restore(tensors)
        self.population.go_to(len(records))
        if "best" in notes:
            self.stopping.restore(tensors, notes["best"], self.algorithm)
            self.population.on_best(notes["best"]["round"])
            if notes["best"]["rounds"] != self.settings.rounds:
                self.stopping.go_on()
        if self.over:
            self.keep_best()


def algorithm_metrics(algorithm: Any, info: Info, metrics: Mapping[str, float]) -> dict[str, float]:
    """The algorithm's own metrics of a round, which must not be named as `metrics` are."""
    own: dict[str, float] = {}
    for name, value in info.metrics.items():
        if name in FIXED_METRICS or name in metrics:
            raise CoterieError(
                f"{type(algorithm).__name__} must give its metric {name} another name, for coterie "
                "itself has one of that name"
            )
        try:
            own[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CoterieError(
                f"the metric {name} of {type(algorithm).__name__} must be a number, got {value!r}"
            ) from error
    return own


def check_withholding(algorithm: Algorithm[Any], settings: RunSettings) -> None:
    """Refuse to withhold what an algorithm cannot do without."""
    if settings.withheld and not traits_of(algorithm).withholds:
        raise SettingError(
            f"`withhold` must be nothing for {type(algorithm).__name__}, whose server looks at "
            f"single clients, got {settings.withhold}"
        )
