"""The page of several runs: curves over each other, the table of the comparison, every run."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.names import short_names
from coterie.evaluation.metrics import name_in
from coterie.evaluation.results_table import ComparisonResults
from coterie.report import figures
from coterie.report.headline import metric_text, run_warnings, setting_text
from coterie.report.palette import colour
from coterie.report.run_files import RunFiles
from coterie.report.template import LIBRARY, fill_template

Groups = dict[str, dict[str, list[RunFiles]]]  # federation -> label -> runs

SEEDS = ("seed", "split_seed")  # runs that differ in nothing else are of one group

# The curves that are drawn, as far as runs have them.
DRAWN = (
    *("accuracy", "train_accuracy", "auc", "train_auc", "r2", "train_r2", "success", "ari"),
    *("loss", "train_loss", "distance"),
)
# What the list of runs shows, of the part that is tested on or else of training.
LISTED = ("accuracy", "loss", "ari")


def group_runs(runs: Sequence[RunFiles]) -> Groups:
    """Runs by federation, then by what tells them apart other than the seed.

    The label of a group is its algorithm, with those settings in which runs of that algorithm on
    that federation differ. Names of packages are left out where that is clear enough.
    """
    short = short_config_names(runs)
    kinds: dict[tuple[str, str], list[RunFiles]] = {}
    for run in runs:
        key = (str(run.config.get("federation")), str(run.config.get("algorithm")))
        kinds.setdefault(key, []).append(run)
    groups: Groups = {}
    for (federation, algorithm), alike in kinds.items():
        settings = [run.config.get("settings") or {} for run in alike]
        names = dict.fromkeys(name for each in settings for name in each if name not in SEEDS)
        told = [n for n in names if len({setting_text(each.get(n)) for each in settings}) > 1]
        for run, each in zip(alike, settings, strict=True):
            settings_text = [f"{name}={setting_text(each.get(name))}" for name in told]
            label = " ".join([short["algorithm"][algorithm], *settings_text])
            groups.setdefault(short["federation"][federation], {}).setdefault(label, []).append(run)
    return groups


def short_config_names(runs: Sequence[RunFiles]) -> dict[str, dict[str, str]]:
    """What to call the algorithms and federations of runs, by their names in config.json."""
    return {
        kind: short_names(str(run.config.get(kind)) for run in runs)
        for kind in ("algorithm", "federation")
    }


def render_comparison(
    groups: Groups, results: ComparisonResults, place: Path | None = None, live: bool = False
) -> str:
    """The HTML page of grouped runs; `results` compares the groups on each federation.

    With `place`, the folder that the page will lie in, runs are linked to their own pages.
    """
    charts: dict[str, figures.Figure] = {}
    sections = []
    for number, (federation, labels) in enumerate(groups.items()):
        histories = {label: [run.rounds for run in runs] for label, runs in labels.items()}
        drawn = []
        own = figures.own_metrics(itertools.chain(*histories.values()))
        for which, key in enumerate([*DRAWN, *own]):
            figure = figures.mean_curves(histories, key)
            if figure is not None:
                name = f"{key}_{number}" if key in DRAWN else f"own_{which}_{number}"
                drawn.append((name, figures.label_of(key)))
                charts[name] = figure
        listed = listed_metrics(labels, results.judge(federation))
        sections.append(
            {
                "federation": federation,
                "charts": drawn,
                "table": results.table(federation),
                "caption": results.caption(federation),
                "listed": listed,
                "seeds": max(len(runs) for runs in labels.values()),
                "runs": [
                    _row(run, label, colour(i), place, listed)
                    for i, (label, runs) in enumerate(labels.items())
                    for run in runs
                ],
            }
        )
    runs = [run for labels in groups.values() for each in labels.values() for run in each]
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    algorithms = short_config_names(runs)["algorithm"]
    context = {
        "sections": sections,
        "algorithms": list(algorithms.values()),
        "facts": [
            ("runs", len(runs)),
            ("seeds", ", ".join(map(str, seeds))),
            ("coterie", ", ".join(sorted({str(run.config.get("coterie")) for run in runs}))),
        ],
        "warnings": [
            (text, f"{algorithms[str(run.config.get('algorithm'))]}, seed {run.seed} {where}")
            for run in runs
            for text, where in (
                *((f"damaged and left out: {name}", "") for name in run.damaged),
                *run_warnings(run.rounds, run.result),
            )
        ],
    }
    data: dict[str, Any] = {"figures": charts, "map": None, "tables": []}
    # Beside the runs of a sweep lies what draws the charts of all; the page is small then.
    shared = place is not None and not live and (place / LIBRARY).is_file()
    return fill_template("runs.html.j2", context, data, live, LIBRARY if shared else "")


def listed_metrics(labels: dict[str, list[RunFiles]], judge: str) -> list[tuple[str, str]]:
    """The metrics of the list of runs, by what they are called: that which decides, and others.

    Of training and of tests there are columns of their own.
    """
    runs = [run.metrics for each in labels.values() for run in each]
    names = [name_in(name, run) for name in dict.fromkeys([judge, *LISTED]) for run in runs]
    return [(name, figures.label_of(name)) for name in dict.fromkeys(filter(None, names))]


def _row(
    run: RunFiles, label: str, hue: str, place: Path | None, listed: list[tuple[str, str]]
) -> dict[str, Any]:
    """The headline numbers of one run."""
    page = run.folder / "report.html"
    metrics = run.metrics
    return {
        "label": label,
        "colour": hue,
        "seed": run.seed,
        "cells": [metric_text(name, metrics.get(name)) for name, _ in listed],
        "clusters": metrics.get("clusters"),
        "rounds": len(run.rounds),
        "finished": bool(run.result),
        "seconds": run.seconds,
        "down": run.bytes("down"),
        "up": run.bytes("up"),
        "command": run.config.get("command") or "",
        "page": Path(os.path.relpath(page, place)).as_posix() if place and page.exists() else None,
    }
