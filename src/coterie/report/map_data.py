"""The data of the maps of clients and of samples in a compact form; map.js draws the points."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.report.clusters import Grouping
from coterie.report.palette import SHAPES, Label, sort_labels
from coterie.report.run_files import RunFiles

DRAWN = 5000  # clients on the map; more would be one grey cloud, and slow
STEPS = 4095  # places along each axis that are told apart


def map_data(run: RunFiles, groups: Grouping) -> dict[str, Any] | None:
    """All frames of the map, with the colours and shapes of its two views; None where none is.

    A frame has `points`, two 16-bit numbers for each client, and `cluster`, one signed 16-bit
    number for each, both in base64. The view by found clusters is left out where every client has
    its own.
    """
    frames = _frames(run)
    if not frames:
        return None
    final = run.clients.get("clients") or {}
    count = len(frames[-1][2])
    rows = np.unique(np.linspace(0, count - 1, min(count, DRAWN)).round().astype(int))
    true = final.get("true") or (run.frames["true"].tolist() if "true" in run.frames else None)
    views = [*([] if groups.own and true else ["found"]), *(["true"] if true else [])]
    attacker = final.get("attacker")
    excluded = {r["round"]: set(r["excluded"]) for r in run.rounds if r.get("excluded")}
    return {
        "views": views,
        "clients": None if len(rows) == count else rows.tolist(),
        "attacker": [attacker[row] for row in rows] if attacker else None,
        "excludes": bool(excluded),
        "true": [true[row] for row in rows] if true else None,
        "frames": [
            {
                "round": number,
                "drawn": drawn,
                "points": _to_base64(points[rows], "<u2"),
                "cluster": None if groups.own else _to_base64(cluster[rows], "<i2"),
                "excluded": [
                    place for place, row in enumerate(rows.tolist()) if row in excluded[number]
                ]
                if number in excluded
                else [],
            }
            for number, drawn, points, cluster in _to_axis_steps(frames)
        ],
        "colours": {"found": groups.colours, "true": groups.true_colours},
        "shapes": {"found": plotly_symbols(true), "true": plotly_symbols(groups.found)},
    }


def sample_map_data(run: RunFiles, groups: Grouping) -> dict[str, Any] | None:
    """The map of samples as `map_data` has that of clients, with what is told of each sample."""
    told = run.samples.get("map")
    if not told:
        return None
    points = np.array([told["x"], told["y"]], dtype=float).T
    frame = (run.kept_round, told["drawn"], points, np.array(told["cluster"]))
    _, drawn, steps, cluster = _to_axis_steps([frame])[0]
    true = told.get("true")
    fields = (
        ("client", "client", "label"),
        ("cluster", "found cluster", "label"),
        ("true", "true cluster", "label"),
        ("loss", "training loss", "decimal"),
    )
    return {
        "views": ["found", *(["true"] if true else [])],
        "clients": None,
        "true": true,
        "frames": [
            {
                "round": run.kept_round,
                "drawn": drawn,
                "points": _to_base64(steps, "<u2"),
                "cluster": _to_base64(cluster, "<i2"),
            }
        ],
        "colours": {"found": groups.colours, "true": groups.true_colours},
        "shapes": {"found": plotly_symbols(true), "true": plotly_symbols(groups.found)},
        "table": {
            "columns": [
                {"key": key, "label": label, "kind": kind, "values": told[key]}
                for key, label, kind in fields
                if told.get(key) is not None
            ]
        },
    }


def plotly_symbols(labels: Sequence[Label] | None) -> dict[Label, str]:
    """The plotly shape of each label; empty where one shape serves all or there are too many."""
    distinct = sort_labels(labels or [])
    if not 1 < len(distinct) <= len(SHAPES):
        return {}
    return dict(zip(distinct, SHAPES, strict=False))


Frame = tuple[int, str, np.ndarray, np.ndarray]  # round, what is drawn, [m, 2], [m]


def _frames(run: RunFiles) -> list[Frame]:
    """The frames that were taken on the way, then the end."""
    taken = run.frames
    frames: list[Frame] = [
        (int(number), str(taken["drawn"][i]), taken["points"][i], taken["cluster"][i])
        for i, number in enumerate(taken.get("rounds", ()))
        if number <= run.kept_round
    ]
    final = run.clients.get("clients") or {}
    if any(value is not None for value in final.get("x") or []):
        points = np.array([final["x"], final["y"]], dtype=float).T
        cluster = np.array([c if isinstance(c, int) else -1 for c in final["cluster"]])
        frames.append((run.kept_round, run.clients.get("map") or "", points, cluster))
    return frames


def _to_axis_steps(frames: Sequence[Frame]) -> list[Frame]:
    """The same frames in whole steps of the axes, rotated to match each other where possible.

    Losses under three or more models are drawn on a circle of fixed size. All else is a projection
    whose directions and scale are arbitrary: each frame is rotated to match the next one, and
    scaled to fill the map.
    """
    done: list[Frame] = []
    for number, drawn, points, cluster in reversed(frames):
        finite = np.isfinite(points[:, 0]) & np.isfinite(points[:, 1])
        points = np.where(finite[:, None], points, 0.0)
        if drawn.startswith("losses") and not drawn.endswith(" 2 models"):
            scaled = points
        else:
            scaled = points / max(float(np.abs(points).max()), 1e-30)
            if done and done[-1][1] == drawn:
                scaled = _rotate_to(scaled, done[-1][2] / STEPS * 2 - 1)
        steps = np.clip((scaled + 1) / 2 * STEPS, 0, STEPS).round()
        steps[~finite] = STEPS + 1  # map.js leaves these out
        done.append((number, drawn, steps, cluster))
    return done[::-1]


def _rotate_to(points: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Points rotated and mirrored, not stretched, to lie nearest to others (Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ like)
    rotated: np.ndarray = points @ left @ right
    return rotated / max(1.0, float(np.abs(rotated).max()))


def _to_base64(values: np.ndarray, kind: str) -> str:
    limits = np.iinfo(kind)
    whole = np.clip(values, limits.min, limits.max).astype(kind)
    return base64.b64encode(whole.tobytes()).decode()
