"""A run: an algorithm on a federation, its folder, its outcome and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.channel.attacks import draw_attackers
from coterie.channel.metering import ByteMeter
from coterie.core.algorithm import Algorithm, Serving, serve_clients
from coterie.core.errors import SettingError
from coterie.core.names import short_name
from coterie.core.population import Population
from coterie.core.sampling import Sampling
from coterie.core.task import Task
from coterie.core.validate import at_most_clients
from coterie.data.federation import Federation
from coterie.engine.simulator import Simulator
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.honest import HonestClients
from coterie.evaluation.personal import PersonalModels
from coterie.evaluation.scoring import Evaluation, SimulatedScorer
from coterie.experiment.checkpoint import Checkpoint, data_digest, run_fingerprint
from coterie.experiment.client_model import client_module
from coterie.experiment.finetuning import check_fine_tuning
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.frames import clients_frame, history_frame
from coterie.experiment.initial import Initial, given_models
from coterie.experiment.kept_run import kept_models, predictor_of_run
from coterie.experiment.newcomers import (
    newcomers_of,
    personalise_newcomers,
    read_newcomers,
)
from coterie.experiment.participants import OnReply, identify_sampling
from coterie.experiment.run_result import (
    run_config,
    run_result,
    with_exclusions,
    write_outcome,
    write_run_page,
)
from coterie.experiment.settings import RunSettings
from coterie.experiment.threats import attacked_clients, check_threats
from coterie.experiment.training import Training, check_withholding
from coterie.prediction.kept_models import MODELS, write_models
from coterie.prediction.predictor import Predictor
from coterie.registry import algorithm_name
from coterie.tasks.defaults import check_labelled
from coterie.tensors.threads import adaptive_threads

# What is told of a run in a line, as far as it is known.
SHOWN_METRICS = ("accuracy", "train_accuracy", "loss", "train_loss", "clusters", "ari")
OnRound = Callable[[Record, "Run"], object]  # called after each round, with its record


class Run:
    """An algorithm on a federation.

    `complete` starts it. From then on, also while it runs, `models`, `clusters`, `metrics`,
    `clients`, `history`, `model(client)` and `report()` tell of the last round that was done.

    The clients are simulated on this machine unless a `population` is given, with an `evaluator`
    that scores on its data. `initial` are the models to begin with, as `given_models` takes them;
    without it, they are those of the task. `sampling` draws the participants of each round;
    without it, the settings say how.
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
        check_fine_tuning(algorithm, settings)
        check_threats(algorithm, settings, len(federation))
        check_labelled(algorithm, federation, task)
        for part in federation.parts.values():
            if len(part.y):
                task.check_samples(part.x, part.y)
        self.algorithm = algorithm
        self.federation = federation
        self.task = task
        self.settings = settings
        values = {**asdict(algorithm), **asdict(settings)}  # type: ignore[call-overload]
        self.config = config or run_config(algorithm_name(algorithm), federation.name, values)
        if population is None or evaluator is None:
            population, evaluator = simulated_clients(algorithm, federation, task, settings)
        self.initial = None if initial is None else given_models(initial, task)  # [j, d]
        # Taken now: what a sampling keeps may change while it draws.
        self.sampling = None if sampling is None else identify_sampling(sampling)
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
        self.stopped = False  # whether the rounds that are left are not to be done
        self.chosen: dict[str, Any] = {}  # of several copies: which this is, and what they did

    def __repr__(self) -> str:
        """What it is, and what the last evaluation said; nothing is computed for it."""
        names = f"{short_name(self.config['algorithm'])} on {short_name(self.config['federation'])}"
        done = f"{self.rounds} of {self.settings.rounds} rounds, seed {self.settings.seed}"
        kept = self.records if self.training.last is None else self.records[: self.best_round]
        evaluated: dict[str, float] = next(
            (record["metrics"] for record in reversed(kept) if record["metrics"]), {}
        )
        told = [f"{name} {evaluated[name]:.4g}" for name in SHOWN_METRICS if name in evaluated]
        place = [] if self.folder is None else [str(self.folder.path)]
        return f"<Run of {names}: {', '.join([done, *told, *place])}>"

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
    def best_round(self) -> int | None:
        """The best round by the validation loss, whose state is kept; None without such a part."""
        return self.training.best_round

    @property
    def ending(self) -> str:
        """Why there are fewer rounds than the settings ask for: early, diverged; else empty."""
        if self.training.diverged:
            return "diverged"
        short = self.rounds < self.settings.rounds
        return "early" if short and self.training.stopping.over else ""

    @property
    def failure(self) -> str:
        """What went wrong in training, in one sentence; empty where nothing did."""
        if not self.training.diverged:
            return ""
        kept = f", which leaves round {self.best_round}" if self.best_round else ""
        return (
            f"the models are no longer finite after round {self.rounds}, so the run ended "
            f"there{kept}; a smaller lr may help"
        )

    @property
    def warnings(self) -> list[str]:
        """The warnings so far."""
        return self.training.health.warnings

    @property
    def bytes(self) -> ByteMeter:
        """What crossed between the server and the clients."""
        return self.training.bytes

    @property
    def serving(self) -> Serving:
        """Which model serves which client."""
        return self.training.outcome.serving

    @property
    def models(self) -> Tensor:
        """The models in use: client i is served by `models[clusters[i]]`, [k, d]."""
        return self.training.outcome.models

    @property
    def clusters(self) -> Tensor:
        """The cluster of every client, [m]; -1 for one that is not served."""
        return self.training.outcome.clusters

    @property
    def labels(self) -> Tensor | None:
        """Where samples are clustered, the cluster of each, [N], client after client; -1 unknown.

        None where clients are clustered.
        """
        return self.training.outcome.labels

    @property
    def evaluation(self) -> Evaluation:
        """The scores of the clients."""
        return self.training.outcome.evaluation

    @property
    def personal(self) -> PersonalModels | None:
        """What became of the models that clients fine-tuned; None where `finetune` is 0."""
        return None if self.state is None else self.training.outcome.personal

    @property
    def metrics(self) -> dict[str, float]:
        """How well the clients are served, by the metrics of docs/concepts.md."""
        return {} if self.state is None else self.training.outcome.metrics

    @property
    def history(self) -> Any:
        """A pandas frame with a row for each round: its metrics, and what it cost."""
        return history_frame(self.records)

    @property
    def clients(self) -> Any:
        """A pandas frame with a row for each client; what is not known of one is missing."""
        tables = with_exclusions(self.training.outcome.tables, self.records)
        return clients_frame(tables["clients"])

    def model(self, client: int | str) -> nn.Module:
        """The network that serves a client, by its id or name: a copy, ready to predict.

        It takes features as the task hands them to the network, `task.inputs(x)`.
        """
        return client_module(self.training.outcome, self.task, client)

    @cached_property
    def fingerprint(self) -> str:
        """What a checkpoint must agree on: all that decides what the run does but its rounds."""
        return self.fingerprint_with()

    def fingerprint_with(self, rounds: int | None = None) -> str:
        """The fingerprint, or that of earlier versions, with the number of rounds."""
        parts = (self.algorithm, self.settings, self.task, self.federation, self.initial)
        return run_fingerprint(*parts, self.sampling, rounds)

    def use_ray(self, shards: int, address: str = "") -> AbstractContextManager[Any]:
        """Run the clients in `shards` Ray actors; called before anything else is done.

        The actors end with the context that is returned, or with the program.
        """
        from coterie.engine.ray import RayClients

        assert isinstance(self.population, Simulator)
        if self.settings.attack != "none" and self.settings.chooses == "clean":
            raise SettingError("`chooses` must be poisoned where clients run on Ray, got clean")
        clients = RayClients(self.population, shards=shards, address=address)
        train = clients.simulator
        scorer = SimulatedScorer(self.federation, train, population=clients)
        if train.samples is not self.federation.train:  # these are poisoned, and judge nobody
            scorer = SimulatedScorer(self.federation, train.with_samples(self.federation.train))
        self.training.move_to(clients, replace(self.evaluator, scorer=scorer))
        return clients

    def use(self, path: Path, *, resume: bool = False) -> RunFolder:
        """Leave files in a new folder, or go on from those of an earlier run."""
        folder = RunFolder.open(path, self.config, resume=resume)
        with folder.unlocked_after_error(), self.training.health.record_warnings():
            folder.data = data_digest(self.federation)
            before = folder.restore(self.fingerprint_with, self.config) if resume else None
            folder.write_schema(self.federation)
            if before is not None:
                self.training.restore(*before)
                self.training.frames.restore(path, self.rounds)
        self.folder = folder
        return folder

    def complete(self, on_round: OnRound | None = None, on_reply: OnReply | None = None) -> Run:
        """Do the rounds that are left, then evaluate the outcome and write it to the folder.

        `on_round` is called after every round with its record and this run, `on_reply` whenever
        clients have replied: with the number of the round, 0 for the start, and of the replies in
        it so far. An error in `on_round` ends the run; it is raised when the outcome is written.
        """
        with adaptive_threads(self.settings.threads):
            return self._complete(on_round, on_reply)

    def _complete(self, on_round: OnRound | None, on_reply: OnReply | None) -> Run:
        self.training.participants.on_reply = on_reply
        self.stopped = False
        error = None
        with nullcontext() if self.folder is None else self.folder.locked():
            if self.state is None:
                self._begin()
            if self.folder is not None and not self.training.over:
                self.folder.remove_outcome()
            while not self.training.over and not self.stopped:
                error = self.tell(on_round, self._do_round())
            try:
                self._end()
            finally:
                if error is not None:
                    raise error
        return self

    def stop(self) -> None:
        """Let this round be the last: for `on_round`. The outcome is that of the rounds so far."""
        self.stopped = True

    def tell(self, on_round: OnRound | None, record: Record) -> Exception | None:
        """Call `on_round`; an error in it stops the run and is returned."""
        try:
            if on_round is not None:
                on_round(record, self)
        except Exception as error:
            self.stop()
            return error
        return None

    def _begin(self) -> None:
        try:
            self.training.begin()
        except Exception:
            if self.folder is not None:
                self.folder.discard()
            raise
        if self.folder is not None:
            self._save_checkpoint(self.folder)

    def _do_round(self) -> Record:
        with self._keep_warnings():
            record = self.training.do_round()
        if self.folder is not None:
            if record["round"] in self.training.frames.due:
                self.training.frames.save(self.folder.path)
            self.folder.history.append(record)
            if self.folder.due(self.rounds, self.settings):
                self._save_checkpoint(self.folder)
        return record

    @contextmanager
    def _keep_warnings(self) -> Iterator[None]:
        """Let the checkpoint have the warnings of what fails inside: no record will tell them."""
        known = len(self.warnings)
        try:
            yield
        except Exception:
            if self.folder is not None:
                self.folder.keep_warnings(self.fingerprint, self.warnings[known:])
            raise

    def _save_checkpoint(self, folder: RunFolder) -> None:
        def checkpoint() -> Checkpoint:
            on_the_way = self.rounds > 0 and not self.training.over
            if isinstance(self.population, Simulator) and on_the_way:
                write_models(folder.path / MODELS, kept_models(self, finished=False))
            return self.training.to_checkpoint(self.fingerprint)

        folder.save(checkpoint)
        self.population.on_checkpoint(self.rounds)

    def finish(self) -> None:
        """Serve all clients with the last state, or the best one if that is known, and judge it."""
        self.training.keep_best()
        with self.training.health.record_warnings():
            outcome = self.training.outcome
            # The order in which clients are asked over a network.
            outcome.evaluation, outcome.serving, outcome.labels, outcome.metrics  # noqa: B018
            if not self.training.lockstep:
                outcome.add_quality()

    def _end(self) -> None:
        if self.folder is not None and self.folder.rounds_saved < self.rounds:
            self._save_checkpoint(self.folder)
        with self._keep_warnings():
            self.finish()
        if self.folder is not None:
            write_outcome(self, self.folder)
            self.folder.write_report()

    def serve(self, rows: Any) -> Tensor:
        """The cluster that serves each client of another federation, by its training part.

        It is -1 where clients make a model of their own, as those of `local` do. `rows` may also be
        a table with labels, of one client or more, in the order of their names: a file, a frame or
        an Arrow table. It is read as the run's own table was.
        """
        unseen = newcomers_of(self, read_newcomers(self.federation, rows))
        serving = serve_clients(self.algorithm, self.state, unseen.at("serve"))
        return serving.cluster if serving.adapt is None else torch.full_like(serving.cluster, -1)

    @property
    def predictor(self) -> Predictor:
        """The models so far and whom they serve, without the data, as `coterie.load_run` gives."""
        return predictor_of_run(self)

    def predict(self, rows: Any, client: Any = None) -> NDArray[Any]:
        """The class [n] of every row of a table, or its target: see `Predictor.predict`.

        A client that took part is known by its name, in the table or as `client`; a new one is
        served by its labels, or by all groups.
        """
        return self.predictor.predict(rows, client)

    def predict_proba(self, rows: Any, client: Any = None) -> NDArray[Any]:
        """The probabilities [n, c] of the classes, in the order of `predictor.classes`."""
        return self.predictor.predict_proba(rows, client)

    def save(self, folder: str | Path) -> Path:
        """Write what `coterie.load_run` reads into a folder: the models and their schema."""
        return self.predictor.save(folder)

    def personalise(self, rows: Any) -> PersonalModels:
        """Serve others, in a federation or a table, who fine-tune as the settings say.

        With `finetune_for=outliers` a client uses the model that it fine-tuned if it moved farther
        than the threshold, which comes from the clients of this run.
        """
        return personalise_newcomers(self, read_newcomers(self.federation, rows))

    @property
    def result(self) -> dict[str, Any]:
        """The outcome in numbers, as `--json` prints it."""
        return run_result(self)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a self-contained page about this run."""
        return write_run_page(self, Path(path))


def simulated_clients(
    algorithm: Algorithm[Any], federation: Federation, task: Task, settings: RunSettings
) -> tuple[Simulator, Evaluator]:
    """The clients of a federation, simulated on this machine, and who scores on their data."""
    attackers = draw_attackers(settings, len(federation), settings.seed)
    clients, judged = attacked_clients(federation, task, settings, attackers)
    scorer, honest = SimulatedScorer(federation, judged), HonestClients(attackers)
    return clients, Evaluator(algorithm, federation, scorer, settings.protocol, honest=honest)
