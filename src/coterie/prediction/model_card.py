"""The model card of an export: what was trained, on what, how well, and what left the clients."""

from __future__ import annotations

from typing import Any

from coterie.core.names import short_name
from coterie.prediction.kept_models import KeptModels

SHOWN_CLIENTS = 20  # of a group; the others are counted
PARTS = {"train_": "training", "validation_": "validation"}  # by what names begin with
UNSCORED = ("clusters", "ari", "nmi", "tuned")  # metrics that are of no part of the data


def model_card(
    kept: KeptModels,
    served: dict[str, dict[str, float]],
    names: list[str],
    left_out: list[str],
    result: dict[str, Any] | None,
) -> str:
    """The card as Markdown. `result` is result.json of the run, if it is there."""
    facts = kept.facts
    algorithm, data = short_name(facts["algorithm"]), short_name(facts["federation"])
    schema = facts["schema"] or {}
    learnt = f"classes {', '.join(schema['classes'])}" if schema.get("classes") else "a real target"
    if not schema:
        learnt = f"{facts['outputs']} outputs"
    lines = [
        f"# Models of {algorithm} on {data}",
        "",
        f"Trained by coterie {facts['coterie']} with {algorithm}, {facts['rounds']} rounds, seed "
        f"{facts['seed']}. They predict {learnt}"
        + (f" (`{schema['label']}`) from {len(schema['encoders'])} columns." if schema else "."),
        "",
        "## Trained on",
        "",
        *trained_on(kept, result),
        "",
        "## Groups",
        "",
        *group_lines(kept, served),
        "",
        "## How well",
        "",
        *card_measures(result),
        "",
        "## What left the clients",
        "",
        *traffic_lines(result),
        "",
        "No row of anybody is in this folder. A model can still tell something of the rows it was "
        "trained on, and one of a small group more than one of a large group.",
        "",
        "## Files",
        "",
        *(f"- `{name}`" for name in names),
        *([""] if left_out else []),
        *(f"- left out: {reason}" for reason in left_out),
        "",
        "`python predict.py new.csv > scored.csv` scores a CSV file without coterie: clients that "
        "took part by their name, all others by all groups, averaged by their clients. Programs "
        "take features as `schema.json` says, and give logits of the classes, or a target which "
        "times `scale` plus `centre` of `target` is in its units.",
        "",
    ]
    return "\n".join(lines)


def trained_on(kept: KeptModels, result: dict[str, Any] | None) -> list[str]:
    """How many clients and samples there were."""
    counts = {} if result is None else result.get("data", {})
    named = [f"{counts[part]:,} {part} samples" for part in ("train", "test") if part in counts]
    return [f"- {len(kept.names):,} clients", *(f"- {each}" for each in named)]


def group_lines(kept: KeptModels, served: dict[str, dict[str, float]]) -> list[str]:
    """The models, how many clients each serves, and some of these."""
    clients: dict[str, list[str]] = {}
    for name, shares in served.items():
        for model in shares:
            clients.setdefault(model, []).append(name)
    lines = ["| model | clients | who |", "| --- | --- | --- |"]
    for model, members in clients.items():
        more = f" and {len(members) - SHOWN_CLIENTS:,} more" if len(members) > SHOWN_CLIENTS else ""
        shown = ", ".join(name.replace("|", "\\|") for name in members[:SHOWN_CLIENTS])
        lines.append(f"| {model} | {len(members):,} | {shown}{more} |")
    return lines


def card_measures(result: dict[str, Any] | None) -> list[str]:
    """The metrics, each with the part of the data that it is of."""
    if result is None or not result.get("metrics"):
        return ["Not measured."]
    lines = ["| metric | part | value |", "| --- | --- | --- |"]
    for name, value in result["metrics"].items():
        lead = next((lead for lead in PARTS if name.startswith(lead)), "")
        part = PARTS.get(lead, "test")
        if name.startswith(UNSCORED):
            part = "-"
        if isinstance(value, int | float):
            lines.append(f"| {name.removeprefix(lead)} | {part} | {value:.6g} |")
    return lines


def traffic_lines(result: dict[str, Any] | None) -> list[str]:
    """What was sent by clients: each part of each step, in bytes over the whole run."""
    table = {} if result is None else result.get("bytes", {})
    sent = [
        f"| {step} | {part} | {count:,} |"
        for step, ways in table.items()
        for part, count in ways["up"].items()
    ]
    if not sent:
        return ["Not recorded."]
    return ["| step | part | bytes from all clients |", "| --- | --- | --- |", *sent]
