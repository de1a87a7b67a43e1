"""From the folder of a run to the text of its page."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from coterie.report import figures, lines, words
from coterie.report.clusters import Grouping, grouping, sample_summary, summary
from coterie.report.figures import Columns, Figure, Round
from coterie.report.palette import SHAPES, Label


def render(folder: Path) -> str:
    """The HTML page of the run in `folder`: one text with scripts and styles inside.

    Needs `config.json`. Leaves out what `rounds.jsonl`, `result.json` and `clients.json` do not
    say, so the folder of an unfinished run has a page too.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"the folder of a run must hold config.json, {folder} does not")
    context = _context(
        config=_read(folder / "config.json"),
        rounds=_read_rounds(folder / "rounds.jsonl"),
        result=_read(folder / "result.json"),
        clients=_read(folder / "clients.json"),
    )
    environment = Environment(
        loader=PackageLoader("coterie.report", ""),
        autoescape=True,
    )
    environment.filters |= {
        "count": words.count,
        "percent": words.percent,
        "decimal": words.decimal,
        "size": words.size,
        "duration": words.duration,
    }
    here = resources.files("coterie.report")
    return environment.get_template("template.html.j2").render(
        context,
        plotly=Markup(get_plotlyjs()),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        script=Markup((here / "page.js").read_text(encoding="utf-8")),
    )


def _context(
    config: dict[str, Any],
    rounds: list[Round],
    result: dict[str, Any],
    clients: dict[str, Any],
) -> dict[str, Any]:
    trained: Columns | None = clients.get("clients") or None
    tested: Columns | None = clients.get("test_clients") or None
    samples: Columns | None = clients.get("sample_clusters") or None
    groups = grouping(rounds, trained, samples)
    metrics = result.get("metrics") or lines.last_metrics(rounds)
    charts = _charts(rounds, groups, trained)
    if samples:  # a client may be in all clusters at once
        charts.pop("sizes", None)
    return {
        "config": config,
        "result": result,
        "facts": lines.facts(config, result),
        "warnings": lines.warnings(rounds, result),
        "headline": lines.headline_cards(metrics, rounds, result, groups, trained),
        "metrics": [(lines.LABELS.get(k, k), lines.metric(k, v)) for k, v in metrics.items()],
        "groups": groups,
        "settled": lines.settled(rounds),
        "summaries": [
            (name, summary(columns, groups))
            for name, columns in (("Training clients", trained), ("Test clients", tested))
            if columns and not groups.own and not samples and len(groups.found) <= 200
        ],
        "samples": sample_summary(samples) if samples else None,
        "projected": clients.get("map"),
        "charts": charts,
        "shapes": {
            "map_found": _shapes((trained or {}).get("true")),
            "map_true": _shapes((trained or {}).get("cluster")),
        },
        "crossed": _crossed(result),
        "asked": sum(r.get("asked") or 0 for r in rounds),
        "answered": sum(r.get("answered") or 0 for r in rounds),
        "settings": {k: lines.setting(v) for k, v in (config.get("settings") or {}).items()},
        "data": _embedded(
            {
                "figures": charts,
                "tables": [
                    _table(name, columns, loss, groups)
                    for name, columns, loss in (
                        ("Training clients", trained, "training loss"),
                        ("Test clients", tested, "loss"),
                    )
                    if columns
                ],
            }
        ),
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _read_rounds(path: Path) -> list[Round]:
    if not path.is_file():
        return []
    *whole, last = path.read_text(encoding="utf-8").rstrip().split("\n")
    rounds = [json.loads(line) for line in whole]
    # A run that was killed may leave half a line, and an empty file has none.
    with suppress(json.JSONDecodeError):
        rounds.append(json.loads(last))
    return rounds


def _charts(
    rounds: Sequence[Round], groups: Grouping, trained: Columns | None
) -> dict[str, Figure]:
    charts: dict[str, Figure | None] = {
        "scores": figures.scores(rounds),
        "errors": figures.errors(rounds),
        "traffic": figures.traffic(rounds),
    }
    if rounds and len(groups.found) > 1 and not groups.own:
        charts["sizes"] = figures.sizes(rounds, groups.drawn)
    if trained and trained.get("x") and trained.get("y"):
        found, true = trained["cluster"], trained.get("true")
        # Where every client is its own cluster, only the true clusters can tell clients apart.
        if not (groups.own and true):
            charts["map_found"] = figures.client_map(
                trained, found, "cluster", groups.colours, shapes=true
            )
        if true:
            charts["map_true"] = figures.client_map(
                trained, true, "true cluster", groups.true_colours, shapes=found
            )
    return {name: figure for name, figure in charts.items() if figure is not None}


def _shapes(labels: Sequence[Label] | None) -> list[tuple[str, Label]]:
    """The characters that stand for the shapes of a map, each with the label it means."""
    glyphs = dict(SHAPES)
    return [(glyphs[shape], label) for label, shape in figures.symbols_of(labels).items()]


def _crossed(result: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """What crossed between server and clients: (client step, direction, part, bytes)."""
    return [
        (step, direction, part, amount)
        for step, directions in (result.get("bytes") or {}).items()
        for direction, parts in directions.items()
        for part, amount in parts.items()
    ]


def _table(name: str, columns: Columns, loss: str, groups: Grouping) -> dict[str, Any]:
    """The client-by-client table as page.js draws it, without the columns that are absent."""
    fields = (
        # First, for that is the column which a word in the filter is looked for in.
        ("name", "name", "label", None),
        ("client", "client", "label", None),
        ("samples", "samples", "count", None),
        ("cluster", "found cluster", "label", groups.colours),
        ("true", "true cluster", "label", groups.true_colours),
        ("loss", loss, "decimal", None),
        ("accuracy", "accuracy", "percent", None),
    )
    return {
        "name": name,
        "columns": [
            {"key": key, "label": label, "kind": kind, "colours": colours, "values": columns[key]}
            for key, label, kind, colours in fields
            if columns.get(key) is not None
        ],
    }


def _embedded(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    """The same value with null for what JSON has no word for: NaN and the infinities."""
    if isinstance(value, float):
        # Six digits are more than any cell or chart shows.
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
