"""Headline numbers of the page, facts about the run, warnings and settings as text."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie.evaluation.metrics import METRICS, is_share, name_in, plain_name
from coterie.report import number_format as numbers
from coterie.report.clusters import Grouping
from coterie.report.figures import THREATS, Columns, Round, label_of
from coterie.report.run_files import RunFiles

FRACTIONS = (*("purity", "tuned"), *THREATS)
HEADLINE = ("accuracy", "success", "r2", "rmse", "loss", "distance", "ari")
AGREEMENTS = ("ari", "nmi")
OF_CLASSES = ("auc", "average_precision", "log_loss")  # also written with 3 decimals


def headline_cards(
    run: RunFiles, groups: Grouping, trained: Columns | None
) -> list[tuple[str, str, str]]:
    """The cards at the top of the page: (label, value, note)."""
    metrics = run.metrics
    cards = []
    judge = str(run.result.get("metric", ""))
    for plain in dict.fromkeys([judge, *HEADLINE] if judge in METRICS else HEADLINE):
        key = name_in(plain, metrics)
        if key is None:
            continue
        cards.append((label_of(key), metric_text(key, metrics[key]), _note(run, key)))
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


def _note(run: RunFiles, key: str) -> str:
    """What stands below a metric on its card: what it was, or what it is to be compared with."""
    metrics = run.metrics
    if key == "ari":
        return "1 is perfect"
    before = metrics.get(f"untuned_{key}")
    if before is not None and key != "loss":
        return f"{metric_text(key, before)} before fine-tuning"
    constant = (run.result.get("baseline") or {}).get(key)
    if constant is not None:
        return f"{metric_text(key, constant)} by a constant"
    over_clients = metrics.get(f"{key}_macro")
    return "" if over_clients is None else f"{metric_text(key, over_clients)} macro"


def metric_text(key: str, value: Any) -> str:
    """The value of a metric as it is written: shares in percent, agreements with 3 decimals."""
    plain = plain_name(key)
    if plain in FRACTIONS or is_share(plain):
        return numbers.percent(value)
    three = plain.removesuffix("_macro") in (*AGREEMENTS, *OF_CLASSES)
    if three and value is not None and math.isfinite(value):
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
