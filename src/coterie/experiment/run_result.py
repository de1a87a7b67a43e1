"""What the files of a run say: config.json, and what a finished one leaves."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.evaluation.metrics import METRICS, default_metric, plain_name
from coterie.evaluation.sample_map import sample_map
from coterie.experiment.folder import Record, RunFolder
from coterie.experiment.kept_run import kept_models
from coterie.prediction.kept_models import MODELS, write_models
from coterie.report.feature_profiles import feature_profiles
from coterie.report.model_draws import draw_from_models
from coterie.report.sample_sheets import sample_sheets
from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.experiment.run import Run


def run_config(
    algorithm: str,
    federation: str,
    settings: dict[str, Any],
    command: str = "",
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What config.json says of a run that starts now; no command if it was made in Python.

    data  the seed by which the federation was drawn and split, and whether another one splits the
          same samples anew; None: it was given as it is
    """
    return {
        "coterie": __version__,
        "algorithm": algorithm,
        "federation": federation,
        "settings": settings,
        "command": command,
        "data": data or {},
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def run_result(run: Run) -> dict[str, Any]:
    """The outcome of a run in numbers: what result.json says, and `--json` prints."""
    training = run.training
    seconds = training.start_seconds + sum(record["seconds"] for record in run.records)
    return {
        "algorithm": run.config["algorithm"],
        "federation": run.config["federation"],
        "rounds": run.rounds,
        **({} if run.best_round is None else {"best_round": run.best_round}),
        **({"ending": run.ending} if run.ending else {}),
        "seed": run.settings.seed,
        "metric": judged_by(run),
        "metrics": run.metrics,
        **baseline_of(run),
        "data": {**run.config.get("data", {}), **sample_counts(run)},
        "scored": run.evaluation.scored,
        "bytes_down": run.bytes.total("down"),
        "bytes_up": run.bytes.total("up"),
        "seconds": round(seconds, 3),
        "run_dir": None if run.folder is None else str(run.folder.path),
        "protocol": run.evaluator.protocol,
        "bytes": run.bytes.table(),
        "start_bytes_down": training.start_bytes[0],
        "start_bytes_up": training.start_bytes[1],
        "warnings": run.warnings,
        **({"teachers": training.teachers} if training.teachers else {}),
        **run.chosen,
    }


def baseline_of(run: Run) -> dict[str, Any]:
    """The metrics of the best constant prediction, as far as they are known."""
    outcome, lead = run.training.outcome, run.evaluator.prefix
    found = outcome.quality.get(lead)
    if found is None or not found.constant:
        return {}
    return {"baseline": {f"{lead}{name}": value for name, value in found.constant.items()}}


def judged_by(run: Run) -> str:
    """The plain name of the metric that a run is judged by."""
    if run.settings.metric != "auto":
        return run.settings.metric
    known = {plain for name in run.metrics if (plain := plain_name(name)) in METRICS}
    counts = getattr(run.task, "label_counts", None)
    total, shares = run.training.outcome.trained.total, ()
    if counts is not None and total is not None:
        labels = counts(total[None])[0]
        shares = tuple((labels / labels.sum()).tolist())
    return default_metric(dict.fromkeys(known, 0), shares)


def sample_counts(run: Run) -> dict[str, int]:
    """How many samples each part has, as far as that is known here."""
    parts = {"train": run.federation.train, "test": run.federation.test}
    counts = {name: len(part.y) for name, part in parts.items() if part is not None}
    return counts | {"train": int(run.evaluator.scorer.sizes("train").sum())}


def write_outcome(run: Run, folder: RunFolder) -> None:
    """Write the files of a finished run: its models, its result, its clients and samples."""
    write_models(folder.path / MODELS, kept_models(run))
    quality = {
        lead.rstrip("_") or "test": each._asdict()
        for lead, each in run.training.outcome.quality.items()
    }
    if quality:
        folder.write("quality.json", {"classes": list(run.federation.classes), **quality})
    folder.write("clients.json", with_exclusions(run.training.outcome.tables, run.records))
    data, seed, labels = run.federation, run.settings.seed, run.labels
    by_sample = run.serving.label is not None
    draws = draw_from_models(run.task, run.serving.models, data, seed) if by_sample else {}
    sheets = sample_sheets(data, run.clusters, labels, seed, draws)
    if sheets:
        folder.write("pictures.json", sheets)
    if by_sample:
        points = sample_map(run.evaluator.scorer, data, run.serving, labels, seed)
        profiles = feature_profiles(data, labels, draws, seed)
        folder.write("samples.json", {"map": points, "features": profiles})
    folder.write("result.json", run.result)  # the last: where it is, the others are
    folder.write_checksums()


def with_exclusions(tables: dict[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """Tables of clients with the number of rounds in which each was excluded, where any can be."""
    if not any("excluded" in record for record in records):
        return tables
    counts = Counter(i for record in records for i in record.get("excluded", ()))
    clients = {**tables["clients"]}
    clients["excluded"] = [counts[i] for i in clients["client"]]
    return {**tables, "clients": clients}


def write_run_page(run: Run, path: Path) -> Path:
    """Write a self-contained page about a run, whether it has a folder or not."""
    if run.folder is not None:
        return run.folder.write_report(path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary), run.config)
        for record in run.records:
            folder.history.append(record)
        run.training.frames.save(folder.path)
        write_outcome(run, folder)
        folder.unlock()
        return folder.write_report(path)
