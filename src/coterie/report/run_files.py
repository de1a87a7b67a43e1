"""The files of a run, as the page needs them."""

import io
import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from coterie.files import read_json
from coterie.report.figures import Round

FILES = (
    "config.json",
    "rounds.jsonl",
    "result.json",
    "quality.json",
    "clients.json",
    "map.npz",
    "pictures.json",
    "samples.json",
)


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds; empty where a file is not there yet."""

    folder: Path
    config: dict[str, Any]
    rounds: list[Round]
    result: dict[str, Any]
    clients: dict[str, Any]
    frames: dict[str, np.ndarray]  # the arrays of map.npz
    pictures: list[dict[str, Any]]
    samples: dict[str, Any]  # where samples are clustered: a map of some, and their features
    # Of the predictions, by the part that they were made on.
    quality: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The final metrics, or before the end the last of each."""
        so_far = {n: v for r in self.rounds for n, v in (r.get("metrics") or {}).items()}
        return self.result.get("metrics") or so_far

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json says, or will say as far as it is known."""
        data = self.config.get("data") or {}
        return {"data": data, **self.result, "seed": self.seed, "metrics": self.metrics}

    @property
    def by_sample(self) -> bool:
        """Whether samples are clustered and not clients, as far as the folder tells so far."""
        counted = any(r.get("counted") == "samples" for r in self.rounds)
        return counted or bool(self.clients.get("sample_clusters"))

    @property
    def best_round(self) -> int | None:
        """The best round by the validation loss, so far or in all; None without such a part."""
        known = [r["best_round"] for r in self.rounds if r.get("best_round")]
        return known[-1] if known else None

    @property
    def kept_round(self) -> int:
        """The round that the outcome is of; before there is one, the last."""
        kept = self.best_round if self.result else None
        return len(self.rounds) if kept is None else kept

    @property
    def seed(self) -> int | None:
        """The seed, if the folder tells it."""
        return self.result.get("seed", (self.config.get("settings") or {}).get("seed"))

    @property
    def seconds(self) -> float:
        """Time spent, so far or in all."""
        spent = self.result.get("seconds")
        return float(sum(r.get("seconds") or 0 for r in self.rounds) if spent is None else spent)

    def bytes(self, way: str) -> int:
        """Bytes that went `down` or `up`, so far or in all."""
        key = f"bytes_{way}"
        total = self.result.get(key)
        return int(sum(r.get(key) or 0 for r in self.rounds) if total is None else total)


def read_run(folder: Path) -> RunFiles:
    """Read a run folder, also one whose run goes on at this moment. It must hold config.json."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"the folder of a run must hold config.json, {folder} does not")
    return RunFiles(
        folder,
        config=read_json(folder / "config.json", {}),
        rounds=_rounds(folder / "rounds.jsonl"),
        result=read_json(folder / "result.json", {}),
        quality=read_json(folder / "quality.json", {}),
        clients=read_json(folder / "clients.json", {}),
        frames=_arrays(folder / "map.npz"),
        pictures=read_json(folder / "pictures.json", []),
        samples=read_json(folder / "samples.json", {}),
    )


def files_stamp(folder: Path) -> list[tuple[int, int]]:
    """What changes whenever a file of the run does: times and sizes."""
    known = [path.stat() for path in map(folder.joinpath, FILES) if path.exists()]
    return [(status.st_mtime_ns, status.st_size) for status in known]


def _rounds(path: Path) -> list[Round]:
    if not path.is_file():
        return []
    *whole, last = path.read_text(encoding="utf-8").rstrip().split("\n")
    rounds = [json.loads(line) for line in whole]
    # A run that goes on or was killed may leave half a line, and an empty file has none.
    with suppress(json.JSONDecodeError):
        rounds.append(json.loads(last))
    return rounds


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with suppress(OSError, ValueError, BadZipFile):
        return dict(np.load(io.BytesIO(path.read_bytes())))
    return {}
