"""Trackers: the numbers of a run in MLflow or TensorBoard as well. Off unless they are asked for.

A tracker gets the settings at the beginning, every round that was evaluated, and the outcome. Both
libraries belong to the extra `track` and are imported only when one is made.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

from coterie.core.errors import CoterieError, SettingError, did_you_mean
from coterie.experiment.folder import Record


class Tracker(Protocol):
    """Where the numbers of a run are written to, besides its folder."""

    def begin(self, config: dict[str, Any]) -> None:
        """Record what is run: the content of config.json."""

    def round(self, record: Record) -> None:
        """Record the numbers of a round; nothing happens if it was not evaluated."""

    def end(self, result: dict[str, Any]) -> None:
        """Record the outcome, the content of result.json, and close."""


class TensorBoard:
    """Event files for TensorBoard in a folder.

    `rounds` is how many rounds are in there already; curves go on behind them.
    """

    def __init__(self, folder: Path, rounds: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_package("tensorboard", "tensorboard") from None
        self.writer = SummaryWriter(str(folder), purge_step=rounds + 1 if rounds else None)

    def begin(self, config: dict[str, Any]) -> None:
        lines = [f"| {name} | {value} |" for name, value in all_settings(config).items()]
        self.writer.add_text(
            "settings", "\n".join(["| setting | value |", "| --- | --- |", *lines])
        )

    def round(self, record: Record) -> None:
        for name, value in record_numbers(record).items():
            self.writer.add_scalar(name, value, record["round"])

    def end(self, result: dict[str, Any]) -> None:
        for name, value in finite_values(result["metrics"]).items():
            self.writer.add_scalar(f"end/{name}", value, result["rounds"])
        self.writer.close()


class MLflow:
    """A run of MLflow's experiment `coterie`, at the place that MLFLOW_TRACKING_URI names."""

    def __init__(self, name: str) -> None:
        try:
            import mlflow
        except ImportError:
            raise missing_package("mlflow", "mlflow") from None
        try:
            self.client = mlflow.MlflowClient()
            known = self.client.get_experiment_by_name("coterie")
            number = known.experiment_id if known else self.client.create_experiment("coterie")
            self.run = self.client.create_run(number, run_name=name).info.run_id
        except mlflow.exceptions.MlflowException as error:
            raise CoterieError(f"MLflow cannot record the run: {error}") from error

    def begin(self, config: dict[str, Any]) -> None:
        for name, value in all_settings(config).items():
            self.client.log_param(self.run, name, value)

    def round(self, record: Record) -> None:
        for name, value in record_numbers(record).items():
            self.client.log_metric(self.run, name, value, step=record["round"])

    def end(self, result: dict[str, Any]) -> None:
        for name, value in finite_values(result["metrics"]).items():
            self.client.log_metric(self.run, f"end/{name}", value)
        self.client.set_terminated(self.run)


def make_tracker(word: str, folder: Path, rounds: int = 0) -> Tracker:
    """The tracker that a word names: `mlflow`, or `tensorboard` with a folder behind a colon.

    `folder` is that of the run: it names it, and holds TensorBoard's files where none is given.
    """
    kind, _, place = word.partition(":")
    if kind == "tensorboard":
        return TensorBoard(Path(place) if place else folder / "tensorboard", rounds)
    if kind == "mlflow" and not place:
        return MLflow(folder.name)
    raise SettingError(
        f"--track must be mlflow, tensorboard or tensorboard:DIR, got {word}"
        f"{did_you_mean(kind, ['mlflow', 'tensorboard']) if kind != 'mlflow' else ''}"
    )


def all_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Every setting of a run, its algorithm and its federation."""
    names = {"algorithm": config["algorithm"], "federation": config["federation"]}
    return {**names, **config["settings"]}


def record_numbers(record: Record) -> dict[str, float]:
    """The numbers of a round that was evaluated; none of another."""
    if not record["metrics"]:
        return {}
    also = ("seconds", "bytes_down", "bytes_up", "answered")
    return finite_values(record["metrics"]) | {name: float(record[name]) for name in also}


def finite_values(values: dict[str, float]) -> dict[str, float]:
    """The values that are finite: no others can be drawn."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def missing_package(name: str, package: str) -> SettingError:
    return SettingError(f"--track {name} needs the package {package}: pip install 'coterie[track]'")
