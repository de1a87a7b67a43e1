"""How good the predictions of a run are: measures beside a constant, confusion, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.evaluation.metrics import METRICS, PREFIXES, metric_label, name_in
from coterie.report.figures import FIRST, Figure
from coterie.report.headline import metric_text
from coterie.report.run_files import RunFiles

MOST_CLASSES = 25  # that are drawn as a confusion matrix
# In the order in which they are told, in words for who applies a model.
MEANINGS = {
    "accuracy": "share of rows that are predicted right",
    "balanced_accuracy": "the same for each class alone, and the mean: rare ones count as much",
    "f1": "balance of how many predictions of a class are right and how many of it are found",
    "auc": "chance that a row of the class is ranked above one that is not; 0.5 is a coin",
    "average_precision": "how pure the rows ranked highest are; a coin has the share of the class",
    "log_loss": "how surprised the probabilities are by what came; lower is better",
    "ece": "how far the probabilities are from how often they come true; 0 is best",
    "r2": "share of the variance that is explained; 0 is as good as the mean",
    "rmse": "root of the mean squared error, in units of the label; lower is better",
    "mae": "mean absolute error, in units of the label; lower is better",
    "loss": "what training makes small; lower is better",
}
PARTS = {"": "test", "train_": "training", "validation_": "validation", "untuned_": "before"}


def tested_part(metrics: Mapping[str, Any]) -> str:
    """What the names of the metrics begin with that a run is judged by."""
    return "" if any(name in metrics for name in MEANINGS) else PREFIXES["train"]


def quality_table(run: RunFiles) -> dict[str, Any] | None:
    """The measures of the part that a run is judged on, beside those of a constant prediction.

    None where nothing but a loss is known.
    """
    metrics, constant = run.metrics, run.result.get("baseline") or {}
    lead = tested_part(metrics)
    names = [name for name in MEANINGS if metrics.get(f"{lead}{name}") is not None]
    if not set(names) - {"loss"}:
        return None
    columns: list[tuple[str, Mapping[str, Any], str, str]] = [
        (f"all {PARTS[lead]} rows", metrics, lead, ""),
        ("mean over clients", metrics, lead, "_macro"),
        ("constant prediction", constant, lead, ""),
        ("all validation rows", metrics, "validation_", ""),
        ("before fine-tuning", metrics, f"untuned_{lead}", ""),
    ]
    cells = {
        title: [_cell(f"{before}{name}{behind}", values) for name in names]
        for title, values, before, behind in columns
    }
    shown = {title: column for title, column in cells.items() if any(column)}
    judge = name_in(str(run.result.get("metric")), metrics) or ""
    return {
        "part": PARTS[lead],
        "titles": list(shown),
        "rows": [
            {
                "label": METRICS[name].label,
                "meaning": MEANINGS[name],
                "judges": f"{lead}{name}" == judge,
                "cells": [column[i] for column in shown.values()],
            }
            for i, name in enumerate(names)
        ],
    }


def quality_section(run: RunFiles) -> dict[str, Any] | None:
    """All that the page says of the quality of predictions, but the curve of calibration."""
    table = quality_table(run)
    if table is None:
        return None
    return {
        **table,
        "notes": quality_notes(run),
        "groups": group_measures(run),
        "confusion": confusion_table(run),
        "calibration": calibration_caption(run),
    }


def _cell(name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    return "" if value is None else metric_text(name, value)


def confusion_table(run: RunFiles) -> dict[str, Any] | None:
    """True classes against predicted ones; None where there are none, or too many to be read."""
    counts = _details(run).get("confusion") or []
    if not 1 < len(counts) <= MOST_CLASSES:
        return None
    names = _class_names(run, len(counts))
    rows = [
        {
            "label": name,
            "total": sum(row),
            "cells": [(n, n / sum(row) if sum(row) else 0.0, i == j) for j, n in enumerate(row)],
            "right": row[i] / sum(row) if sum(row) else None,
        }
        for i, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    return {"names": names, "rows": rows}


def calibration_figure(run: RunFiles) -> Figure | None:
    """How often came true what was predicted with a probability; None where nobody knows."""
    bins = _details(run).get("calibration")
    if not bins or not bins["samples"]:
        return None
    hover = "predicted %{x:.1%}<br>came true %{y:.1%}<br>%{customdata:,} rows<extra></extra>"
    axis = {"range": [-0.02, 1.02], "tickformat": ".0%"}
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "perfectly calibrated",
                "x": [0, 1],
                "y": [0, 1],
                "line": {"dash": "dot", "width": 1, "color": "#888888"},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "this run",
                "x": bins["predicted"],
                "y": bins["true"],
                "customdata": [int(n) for n in bins["samples"]],
                "marker": {"size": _marker_sizes(bins["samples"]), "color": FIRST},
                "line": {"width": 2, "color": FIRST},
                "hovertemplate": hover,
            },
        ],
        "layout": {
            "xaxis": {**axis, "title": {"text": "predicted probability"}},
            "yaxis": {**axis, "title": {"text": "how often it came true"}},
            "hovermode": "closest",
        },
    }


def calibration_caption(run: RunFiles) -> str:
    """What the curve of calibration is of."""
    classes = len(_details(run).get("confusion") or [])
    if classes != 2:
        return "the probability of the class that is predicted, and how often that is right"
    name = _class_names(run, 2)[1]
    return f"the probability of “{name}”, and the share of rows that are “{name}”"


def quality_notes(run: RunFiles) -> list[str]:
    """What has to be said of these measures."""
    details, notes = _details(run), []
    count = len(_details(run).get("confusion") or [])
    if count > 2:
        notes.append("AUC and average precision are means over classes, each against all others.")
    elif count == 2:
        notes.append(f"AUC and average precision are of the class “{_class_names(run, 2)[1]}”.")
    known, scored = details.get("clients_with_auc"), run.result.get("scored")
    if known is not None and scored and known < scored:
        notes.append(
            f"{scored - known} of {scored} clients have one class only and no part in the mean of "
            "AUC over clients."
        )
    if details.get("binned"):
        notes.append(
            "AUC and average precision come from histograms, for predictions stay with the "
            f"clients; they are off by at most {details['auc_error']:.2g} and "
            f"{details['average_precision_error']:.2g}."
        )
    return notes


def group_measures(run: RunFiles) -> dict[str, Any] | None:
    """Each group of clients with its own measures; None where there is one group or none."""
    rows = _quality(run).get("groups") or []
    if not rows:
        return None
    names = [name for name in MEANINGS if any(name in row["metrics"] for row in rows)]
    return {
        "titles": [metric_label(name) for name in names],
        "rows": [{**row, "cells": [_cell(name, row["metrics"]) for name in names]} for row in rows],
    }


def _quality(run: RunFiles) -> dict[str, Any]:
    return run.quality.get("test") or run.quality.get("train") or {}


def _details(run: RunFiles) -> dict[str, Any]:
    return _quality(run).get("details") or {}


def _class_names(run: RunFiles, count: int) -> list[str]:
    names = run.quality.get("classes") or []
    return list(names) if len(names) == count else [str(i) for i in range(count)]


def _marker_sizes(samples: Sequence[float]) -> list[float]:
    """Sizes by which areas are as the number of rows, small ones still to be seen."""
    most = max(samples)
    return [round(6 + 14 * (n / most) ** 0.5, 1) for n in samples]
