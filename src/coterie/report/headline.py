"""Headline numbers of the page, facts about the run, warnings and settings as text."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie.report import number_format as numbers
from coterie.report.clusters import Grouping
from coterie.report.figures import LABELS, THREATS, Columns, Round
from coterie.report.run_files import RunFiles

FRACTIONS = (
    *("accuracy", "accuracy_macro", "f1", "f1_macro", "f1_micro"),
    *("purity", "success", "tuned"),
    *THREATS,
)
HEADLINE = ("accuracy", "train_accuracy", "success", "loss", "train_loss", "distance", "ari")
AGREEMENTS = ("ari", "nmi")


def headline_cards(
    run: RunFiles, groups: Grouping, trained: Columns | None
) -> list[tuple[str, str, str]]:
    """The cards at the top of the page: (label, value, note)."""
    metrics = run.metrics
    cards = []
    for key in HEADLINE:
        if metrics.get(key) is None:
            continue
        note = "1 is perfect" if key == "ari" else ""
        if key == "accuracy" and metrics.get("accuracy_macro") is not None:
            note = f"{numbers.percent(metrics['accuracy_macro'])} macro"
        before = metrics.get(f"untuned_{key}")
        if before is not None and key in ("accuracy", "train_accuracy"):
            note = f"{metric_text(key, before)} before fine-tuning"
        cards.append((LABELS.get(key, key), metric_text(key, metrics[key]), note))
    clusters = metrics.get("clusters", groups.occupied or None)
    if clusters is not None:
        truth = len(groups.true)
        note = f"{truth} true" if truth else "true ones unknown"
        cards.append(("clusters", numbers.count(clusters), note))
    if trained and trained.get("attacker"):
        theirs = metrics.get("attackers_accuracy")
        note = "" if theirs is None else f"{numbers.percent(theirs)} accuracy"
        cards.append(("attackers", numbers.count(sum(trained["attacker"])), note))
    number = len(run.rounds)
    planned = (run.config.get("settings") or {}).get("rounds")
    members = f"{numbers.count(len(trained['client']))} clients" if trained else ""
    if planned and (number < planned or not run.result):
        members = f"of {numbers.count(planned)}"
    cards.append(("rounds", numbers.count(number), members))
    each = _per_round(numbers.duration, run.seconds, number)
    cards.append(("time", numbers.duration(run.seconds), each))
    for way, title in (("down", "to the clients"), ("up", "from the clients")):
        total = run.bytes(way)
        each = _per_round(numbers.byte_size, total, number)
        cards.append((title, numbers.byte_size(total), each))
    return cards


def metric_text(key: str, value: Any) -> str:
    """The value of a metric as it is written: fractions in percent, agreements with 3 decimals."""
    part = key.removeprefix("untuned_").removeprefix("train_").removeprefix("validation_")
    if part in FRACTIONS:
        return numbers.percent(value)
    if key in AGREEMENTS and value is not None and math.isfinite(value):
        return f"{value:.3f}"
    return numbers.count(value) if isinstance(value, int) else numbers.decimal(value)


def tuned_sentence(run: RunFiles) -> str:
    """Who uses the model that it fine-tuned; empty where nobody fine-tunes."""
    share, limit = run.metrics.get("tuned"), run.metrics.get("tuned_distance")
    if share is None:
        return ""
    if limit is None:
        return "all use what became of them."
    far = f"farther than {numbers.decimal(limit)}"
    return f"{numbers.percent(share)} use what became of them, for it moved {far}."


def kept_sentence(run: RunFiles) -> str:
    """Which round is kept, and why training ended before it was to; empty without reason to say."""
    best, done, ending = run.best_round, len(run.rounds), run.result.get("ending")
    said = []
    if ending == "diverged":
        said.append(f"Training ended after round {done}: the models were no longer finite.")
    if best is None:
        return " ".join(said)
    losses = {r["round"]: (r.get("metrics") or {}).get("validation_loss") for r in run.rounds}
    loss = losses.get(best)
    told = "" if loss is None else f" ({numbers.decimal(loss)})"
    word = "Kept is" if run.result else "So far the best is"
    said.append(f"{word} round {best}, which has the lowest validation loss{told}.")
    if ending == "early":
        waited = (run.config.get("settings") or {}).get("early_stopping")
        when = f"when {waited} evaluations had brought no lower one"
        said.append(f"Training ended after round {done}, {when}.")
    return " ".join(said)


def run_facts(run: RunFiles) -> list[tuple[str, Any]]:
    """What identifies the run, without what the folder does not say: (name, value)."""
    config, result = run.config, run.result
    known = [
        ("started", (config.get("started") or "").replace("T", " ")),
        ("seed", run.seed),
        ("measured with", result.get("protocol")),
        ("scored", scored_text(run)),
        ("coterie", config.get("coterie")),
    ]
    return [(name, value) for name, value in known if value not in (None, "")]


def scored_text(run: RunFiles) -> str:
    """How many clients the final metrics are of, where these are not all; else empty."""
    scored = run.result.get("scored")
    tables = [run.clients.get(name) for name in ("test_clients", "clients")]
    count = next((len(table["client"]) for table in tables if table), scored)
    return "" if scored in (None, count) else f"{scored} of {count} clients"


def run_warnings(rounds: Sequence[Round], result: dict[str, Any]) -> list[tuple[str, str]]:
    """Every distinct warning with the rounds that gave it, in the order they first came."""
    given: dict[str, list[int]] = {}
    for r in rounds:
        for message in dict.fromkeys(r.get("warnings") or []):
            given.setdefault(message, []).append(r["round"])
    for message in result.get("warnings") or []:
        given.setdefault(message, [])
    return [(text, numbers.round_ranges(where) if where else "") for text, where in given.items()]


def setting_text(value: Any) -> str:
    """A setting as it is written: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _per_round(form: Callable[[float], str], total: float | None, number: int) -> str:
    return f"{form(total / number)} a round" if total and number else ""
