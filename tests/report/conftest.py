"""Folders of made-up runs, through the fixture `make_run`."""

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a run below `tmp_path` and gives its folder; see `write_run`."""

    def make(name: str = "run", **choices: Any) -> Path:
        return write_run(tmp_path / name, **choices)

    return make


def write_run(
    folder: Path,
    *,
    k: int = 4,
    clients: int = 80,
    rounds: int = 20,
    truth: bool = True,
    regression: bool = False,
    tested: bool = False,
    settings: dict[str, Any] | None = None,
    warnings: tuple[str, ...] = (),
    seed: int = 0,
    algorithm: str = "ifca",
    frames: Sequence[int] = (1, 2, 3),
    restless: int = 0,
    sheets: int = 0,
) -> Path:
    """Write a run that finds the k true clusters under other numbers, one client in 20 misplaced.

    From k = 100 every client has a cluster of its own; else all are in cluster 0 until round 3,
    when they find their own. From then on the first `restless` clients move in every round. The map
    has `frames` after those rounds. There are pictures of the first `sheets` clusters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = list(range(clients))
    true = [i % min(k, 20) for i in ids]
    found = [(i + 1 + (i % 20 == 7)) % k for i in ids] if k < 100 else ids
    sizes = [found.count(cluster) for cluster in range(k)] if k < 100 else [1] * k
    metrics = _metrics(rounds, rounds, truth, regression, k)
    accuracy = None if regression else [0.8 + 0.2 * math.sin(i) ** 2 for i in ids]
    columns = {
        "client": ids,
        "samples": [100 + i % 7 for i in ids],
        "cluster": found,
        "true": true if truth else None,
        "loss": [0.3 + 0.1 * math.cos(i) for i in ids],
        "accuracy": accuracy,
    }
    jitter = [(math.sin(12.9898 * i) * 43758.5453) % 1 for i in range(2 * clients)]
    angles = [2 * math.pi * label / min(k, 20) for label in true]
    config = {
        "coterie": "0.1.0",
        "algorithm": algorithm,
        "federation": "rotated-digits",
        "settings": {"k": k, "seed": seed, "learning_rate": 0.1} | (settings or {}),
        "command": f"coterie run {algorithm} rotated-digits k={k} seed={seed}",
        "started": "2026-11-15T23:40:00",
    }
    lines = [
        {
            "round": r,
            "seconds": 0.12,
            "metrics": _metrics(r, rounds, truth, regression, k),
            "by_cluster": _by_cluster(r, rounds, k, regression),
            "sizes": sizes if r > 2 or k == 1 else [clients, *[0] * (k - 1)],
            "moves": _moves(r, found, k) | ({r % k: ids[:restless]} if restless and r > 3 else {}),
            "asked": clients,
            "answered": clients - (r % 2),
            "bytes_down": 4_000_000,
            "bytes_up": 1_000_000,
            "warnings": list(warnings) if r in (2, 3, 4, 9) else [],
        }
        for r in range(1, rounds + 1)
    ]
    result = {
        "algorithm": algorithm,
        "federation": "rotated-digits",
        "rounds": rounds,
        "seed": seed,
        "metrics": metrics,
        "bytes_down": 4_000_000 * rounds,
        "bytes_up": 1_000_000 * rounds,
        "seconds": 83.4,
        "run_dir": "runs/one",
        "bytes": {
            "train": {
                "down": {"models": 4_000_000 * rounds},
                "up": {"cluster": 8 * rounds, "model": 999_984 * rounds, "size": 8 * rounds},
            }
        },
        "start_bytes_down": 2048,
        "start_bytes_up": 512,
        "warnings": list(warnings),
        "protocol": "train-loss",
    }
    per_client = {
        "map": "losses under the k models",
        "clients": columns
        | {
            "x": [math.cos(a) + 0.5 * jitter[i] for i, a in enumerate(angles)],
            "y": [math.sin(a) + 0.5 * jitter[clients + i] for i, a in enumerate(angles)],
        },
        "test_clients": columns | {"client": [clients + i for i in ids]} if tested else None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "clients.json").write_text(json.dumps(per_client))
    places = np.array([per_client["clients"]["x"], per_client["clients"]["y"]], np.float32).T
    taken = [r for r in frames if r < rounds]
    if taken:
        np.savez_compressed(
            folder / "map.npz",
            rounds=np.array(taken),
            drawn=np.array(["losses under the k models"] * len(taken)),
            # Each client on its way from the middle to its place.
            points=np.stack([places * r / (rounds + 1) / 2 for r in taken]),
            cluster=np.stack([found if r > 2 else np.zeros_like(found) for r in taken]),
            **({"true": np.array(true)} if truth else {}),
        )
    if sheets:
        pictures = [{"cluster": c, "clients": [c, c + k], "png": _png(c)} for c in range(sheets)]
        (folder / "pictures.json").write_text(json.dumps(pictures))
    return folder


def _png(shade: int) -> str:
    buffer = io.BytesIO()
    Image.new("L", (418, 166), 20 * shade % 256).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _moves(r: int, found: list[int], k: int) -> dict[int, list[int]]:
    if r == 1:
        return {0: list(range(len(found)))}
    if r != 3 or not 1 < k < 100:
        return {}
    return {c: [i for i, label in enumerate(found) if label == c] for c in range(1, k)}


def _by_cluster(r: int, rounds: int, k: int, regression: bool) -> dict[str, list[float | None]]:
    if not 1 < k < 100:
        return {}
    # Before round 3 nobody is in a cluster but the first.
    losses = [1.5 - r / rounds + c / 100 if r > 2 or c == 0 else None for c in range(k)]
    accuracies = [None if loss is None else 1 - loss / 2 for loss in losses]
    return {"loss": losses} | ({} if regression else {"accuracy": accuracies})


def _metrics(r: int, rounds: int, truth: bool, regression: bool, k: int) -> dict[str, float]:
    done = r / rounds if rounds else 0
    shared: dict[str, float] = {"clusters": k, "loss": 1.5 - 1.2 * done**0.5}
    if regression:
        return shared | {
            "distance": 10 * 0.01**done,
            "distance_nearest": 9 * 0.01**done,
            "success": float(done > 0.5),
        }
    scores = {"accuracy": 0.4 + 0.5123 * done**0.3, "accuracy_macro": 0.4 + 0.5 * done**0.3}
    grouping = {"ari": done**0.2 - 0.0341, "nmi": done**0.2, "purity": 0.95} if truth else {}
    return shared | scores | grouping | {"f1": 0.9 * done**0.3, "f1_macro": 0.88 * done**0.3}
