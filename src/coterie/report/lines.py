"""The short lines of the page: headline numbers, facts about the run, warnings, settings."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie.report import figures, words
from coterie.report.clusters import Grouping
from coterie.report.figures import Columns, Round

FRACTIONS = ("accuracy", "accuracy_macro", "f1", "f1_macro", "purity", "success")
AGREEMENTS = ("ari", "nmi")
LABELS = {key: label for key, (label, *_) in (figures.SCORES | figures.ERRORS).items()}


def headline_cards(
    metrics: dict[str, Any],
    rounds: Sequence[Round],
    result: dict[str, Any],
    groups: Grouping,
    trained: Columns | None,
) -> list[tuple[str, str, str]]:
    """The cards at the top of the page: (label, value, note)."""
    cards = []
    for key in ("accuracy", "success", "loss", "distance", "ari"):
        if metrics.get(key) is None:
            continue
        note = "1 is perfect" if key == "ari" else ""
        if key == "accuracy" and metrics.get("accuracy_macro") is not None:
            note = f"{words.percent(metrics['accuracy_macro'])} macro"
        cards.append((LABELS[key], metric(key, metrics[key]), note))
    clusters = metrics.get("clusters", groups.occupied or None)
    if clusters is not None:
        truth = len(groups.true)
        note = f"{truth} true" if truth else "true ones unknown"
        cards.append(("clusters", words.count(clusters), note))
    number = int(result.get("rounds", len(rounds)))
    members = f"{words.count(len(trained['client']))} clients" if trained else ""
    cards.append(("rounds", words.count(number), members))
    seconds = result.get("seconds", sum(r.get("seconds") or 0 for r in rounds))
    cards.append(("time", words.duration(seconds), _each(words.duration, seconds, number)))
    for key, label in (("bytes_down", "to the clients"), ("bytes_up", "from the clients")):
        total = result.get(key, sum(r.get(key) or 0 for r in rounds))
        cards.append((label, words.size(total), _each(words.size, total, number)))
    return cards


def metric(key: str, value: Any) -> str:
    """The value of a metric as it is written: fractions in percent, agreements with 3 decimals."""
    if key in FRACTIONS:
        return words.percent(value)
    if key in AGREEMENTS and value is not None and math.isfinite(value):
        return f"{value:.3f}"
    return words.count(value) if isinstance(value, int) else words.decimal(value)


def facts(config: dict[str, Any], result: dict[str, Any]) -> list[tuple[str, Any]]:
    """What identifies the run, without what the folder does not say: (name, value)."""
    seed = result.get("seed", (config.get("settings") or {}).get("seed"))
    known = [
        ("started", (config.get("started") or "").replace("T", " ")),
        ("seed", seed),
        ("measured with", result.get("protocol")),
        ("coterie", config.get("coterie")),
    ]
    return [(name, value) for name, value in known if value not in (None, "")]


def warnings(rounds: Sequence[Round], result: dict[str, Any]) -> list[tuple[str, str]]:
    """Every distinct warning with the rounds that gave it, in the order they first came."""
    given: dict[str, list[int]] = {}
    for r in rounds:
        for message in dict.fromkeys(r.get("warnings") or []):
            given.setdefault(message, []).append(r["round"])
    for message in result.get("warnings") or []:
        given.setdefault(message, [])
    return [(text, words.rounds(where) if where else "") for text, where in given.items()]


def settled(rounds: Sequence[Round]) -> int | None:
    """The last round in which a client changed its cluster; None where no move was recorded."""
    moving = [r["round"] for r in rounds if any((r.get("moves") or {}).values())]
    return moving[-1] if moving else None


def setting(value: Any) -> str:
    """A setting as it is written: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def last_metrics(rounds: Sequence[Round]) -> dict[str, Any]:
    """The metrics of the last round that was evaluated; empty where none was."""
    evaluated = [r["metrics"] for r in rounds if r.get("metrics")]
    return evaluated[-1] if evaluated else {}


def _each(form: Callable[[float], str], total: float | None, number: int) -> str:
    return f"{form(total / number)} a round" if total and number else ""
