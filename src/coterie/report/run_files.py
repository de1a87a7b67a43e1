"""The files of a run, as the page needs them; what is damaged is left out and named."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.files import (
    changed_files,
    parse_json,
    read_checked_lines,
    read_json,
    read_plain_file,
)
from coterie.report.figures import Round
from coterie.report.number_format import round_ranges


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
    damaged: tuple[str, ...] = ()  # what is left out because it is damaged
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


# The files of a run by the field that holds them, in the order in which a page can do with them,
# and what stands for a file that is not there.
PARTS: dict[str, tuple[str, Any]] = {
    "config": ("config.json", {}),
    "rounds": ("rounds.jsonl", []),
    "result": ("result.json", {}),
    "quality": ("quality.json", {}),
    "clients": ("clients.json", {}),
    "frames": ("map.npz", {}),
    "pictures": ("pictures.json", []),
    "samples": ("samples.json", {}),
}


def read_run(folder: Path) -> RunFiles:
    """Read a run folder, also one whose run goes on at this moment. It must hold config.json."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"the folder of a run must hold config.json, {folder} does not")
    parts: dict[str, Any] = {}
    damaged: list[str] = []
    changed = changed_files(folder)
    for part, (name, missing) in PARTS.items():
        parts[part] = missing
        try:
            if name in changed:
                raise ValueError("it is not what it was when the run ended")
            if part == "rounds":
                parts[part], wrong = read_rounds(folder / name)
                damaged += [wrong] if wrong else []
            elif part == "frames":
                parts[part] = read_frames(folder / name)
            else:
                found = read_json(folder / name, missing)
                if type(found) is not type(missing):
                    raise ValueError(f"it must hold a {type(missing).__name__}")
                parts[part] = found
        except (OSError, ValueError):
            damaged.append(name)
    due = {*changed, *(("rounds.jsonl", "clients.json") if parts["result"] else ())}
    gone = {name for name in due if not os.path.lexists(folder / name)}
    damaged = [*damaged, *sorted({*changed} - {*damaged})]
    told = [name for name in damaged if name not in gone]
    told += [f"{name} (missing)" for name in sorted(gone)]
    return RunFiles(folder, **parts, damaged=tuple(told))


def whole_parts(run: RunFiles, render: Callable[[RunFiles], object]) -> RunFiles:
    """The run without those files that no page can be made of, which are named as damaged.

    Every file is as JSON or an archive should be: that what it says is of the right kind is seen
    when `render` draws it.
    """
    if can_render(run, render):
        return run
    kept = replace(run, **{part: missing for part, (_, missing) in PARTS.items()})
    for part, (name, missing) in PARTS.items():
        content = getattr(run, part)
        if content != missing:
            tried = replace(kept, **{part: content})
            damaged = (*kept.damaged, *(() if name in kept.damaged else (name,)))
            kept = tried if can_render(tried, render) else replace(kept, damaged=damaged)
    return kept


def can_render(run: RunFiles, render: Callable[[RunFiles], object]) -> bool:
    """Whether a page can be made of a run."""
    try:
        render(run)
    except Exception:  # damaged files may lead to any
        return False
    return True


def files_stamp(folder: Path) -> list[tuple[int, int]]:
    """What changes whenever a file of the run does: times and sizes."""
    paths = [folder / name for name, _ in PARTS.values()]
    known = [path.stat() for path in paths if path.exists()]
    return [(status.st_mtime_ns, status.st_size) for status in known]


def read_rounds(path: Path) -> tuple[list[Round], str]:
    """The whole records of rounds.jsonl, and which lines of it are damaged; empty: none."""
    if not os.path.lexists(path) and not os.path.lexists(path.with_suffix(".crc")):
        return [], ""
    lines, wrong = read_checked_lines(path)
    rounds: list[Round] = []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
            if record["round"] != number:
                raise ValueError("another round")
            if number not in wrong:
                rounds.append(record)
        except (ValueError, KeyError, TypeError):
            wrong += [] if number in wrong else [number]
    return rounds, f"{path.name} ({round_ranges(sorted(wrong))})" if wrong else ""


def read_frames(path: Path) -> dict[str, np.ndarray]:
    """The arrays of map.npz, none where it is not there; what is no such file is a ValueError."""
    if not os.path.lexists(path):
        return {}
    try:
        found = dict(np.load(io.BytesIO(read_plain_file(path))))
        frames = len(found["rounds"])
        clients = found["points"].shape[1:2]
        shapes = {"rounds": (), "drawn": (), "points": (*clients, 2), "cluster": clients}
        fits = all(found[name].shape == (frames, *shape) for name, shape in shapes.items())
    except Exception as error:  # a damaged archive may lead to any
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not fits:
        raise ValueError(f"{path} does not hold frames of a map")
    return found
