"""What config.json and result.json say of a run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.experiment.run import Run


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


def run_result(run: Run) -> dict[str, Any]:
    """The outcome of a run in numbers: what result.json says, and `--json` prints."""
    training = run.training
    seconds = training.start_seconds + sum(record["seconds"] for record in run.records)
    return {
        "algorithm": run.config["algorithm"],
        "federation": run.config["federation"],
        "rounds": run.rounds,
        "seed": run.settings.seed,
        "metrics": run.metrics,
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
        **run.chosen,
    }
