"""The page of one run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.report import cluster_changes, cluster_rounds, clusters, figures, headline
from coterie.report.clusters import Grouping
from coterie.report.feature_profiles import profile_figures
from coterie.report.figures import Columns, Figure
from coterie.report.map_data import map_data, sample_map_data
from coterie.report.palette import SHAPES
from coterie.report.prediction_quality import calibration_figure, quality_section
from coterie.report.run_files import RunFiles, read_run
from coterie.report.template import fill_template


def render_run(folder: Path, live: bool = False, library: str = "") -> str:
    """The HTML page of the run in `folder`: one text with scripts and styles inside.

    `library` is the path to what draws the charts, where that is not to be inside.

    Needs `config.json`. Leaves out what the other files do not say, so the folder of an unfinished
    run has a page too.
    """
    return render_run_files(read_run(folder), live, library)


def render_run_files(run: RunFiles, live: bool = False, library: str = "") -> str:
    """The HTML page of a run whose files have been read."""
    trained: Columns | None = run.clients.get("clients") or None
    tested: Columns | None = run.clients.get("test_clients") or None
    samples: Columns | None = run.clients.get("sample_clusters") or None
    groups = clusters.group_clusters(run.rounds, trained or _clusters_so_far(run), samples)
    places, sample_places = map_data(run, groups), sample_map_data(run, groups)
    named = (("Training clients", trained), ("Test clients", tested))
    summaries = [
        (name, clusters.cluster_table(columns, groups))
        for name, columns in named
        if columns and not groups.own and not samples and len(groups.found) <= 200
    ]
    by_sample = clusters.sample_table(samples) if samples else None
    profiles = run.samples.get("features") or {}
    own = {f"own_{i}": pair for i, pair in enumerate(figures.own_curves(run.rounds).items())}
    quality = quality_section(run)
    calibration = calibration_figure(run) if quality else None
    charts = _charts(run, groups)
    charts |= {"calibration": calibration} if calibration else {}
    charts |= _profile_charts(profiles)
    charts |= {key: figure for key, (_, figure) in own.items()}
    charts |= _confusion_charts([table for _, table in summaries], by_sample)
    context = {
        "config": run.config,
        "result": run.result,
        "facts": headline.run_facts(run),
        "warnings": [
            *((f"damaged and left out: {name}", "") for name in run.damaged),
            *headline.run_warnings(run.rounds, run.result),
        ],
        "headline": headline.headline_cards(run, groups, trained),
        "metrics": [
            (figures.label_of(k), headline.metric_text(k, v)) for k, v in run.metrics.items()
        ],
        "quality": quality,
        "training": "training " if not tests(run) else "",
        "trained": trained is not None,
        "tuned": headline.tuned_sentence(run),
        "kept": headline.kept_sentence(run),
        "groups": groups,
        "settled": cluster_changes.last_move(run.rounds),
        "summaries": summaries,
        "samples": by_sample,
        "by_sample": run.by_sample,
        "over": "cluster rounds" if cluster_rounds.by_cluster_round(run.rounds) else "rounds",
        "profiles": profiles,
        "pictures": _pictures(run, groups, (trained or {}).get("name")),
        "charts": charts,
        "own": [(key, name) for key, (name, _) in own.items()],
        "maps": [
            *_maps("sample_map", "samples", sample_places),
            *_maps("map", "clients", places),
        ],
        "worst": clusters.worst_served(tested or trained, groups),
        "worst_label": worst_label(tested or trained, tested is not None),
        "crossed": _bytes_by_part(run.result),
        "asked": sum(r.get("asked") or 0 for r in run.rounds),
        "answered": sum(r.get("answered") or 0 for r in run.rounds),
        "settings": {
            k: headline.setting_text(v) for k, v in (run.config.get("settings") or {}).items()
        },
    }
    losses = ("training loss", "loss")
    data = {
        "figures": charts,
        "map": places,
        "sample_map": sample_places,
        "tables": [
            _table(name, columns, loss, groups)
            for (name, columns), loss in zip(named, losses, strict=True)
            if columns
        ],
    }
    return fill_template("run.html.j2", context, data, live, library)


def tests(run: RunFiles) -> bool:
    """Whether a run is judged by a test part, as far as is known; else by what is trained on."""
    return "train_loss" not in run.metrics


def worst_label(columns: Columns | None, tested: bool) -> str:
    """What the worst-served clients are called by: their loss is that of training, if they train.

    >>> worst_label({"accuracy": None}, False), worst_label({"accuracy": [0.5]}, False)
    ('training loss', 'accuracy')
    """
    if columns is None or columns.get("accuracy") is not None:
        return "accuracy"
    return "loss" if tested else "training loss"


def _clusters_so_far(run: RunFiles) -> Columns | None:
    """The clusters at the last frame of the map, for a run that has not come to its end."""
    if not len(run.frames.get("rounds", ())):
        return None
    true = run.frames["true"].tolist() if "true" in run.frames else None
    return {"cluster": run.frames["cluster"][-1].tolist(), "true": true}


def _charts(run: RunFiles, groups: Grouping) -> dict[str, Figure]:
    rounds = run.rounds
    charts: dict[str, Figure | None] = {
        "scores": figures.score_curves(rounds),
        "errors": figures.error_curves(rounds),
        "selection": figures.selection_curve(run.result.get("selection") or {}),
        "threats": figures.threat_curves(rounds),
        "cluster_accuracy": figures.cluster_curves(rounds, "accuracy", groups.drawn),
        "cluster_loss": figures.cluster_curves(rounds, "loss", groups.drawn),
        "traffic": figures.traffic_bars(rounds),
        "seconds": figures.time_bars(rounds),
    }
    several = bool(rounds) and len(groups.found) > 1 and not groups.own
    # Where samples are clustered, a client may be in all clusters at once.
    if several and run.by_sample:
        numbered = cluster_rounds.by_cluster_round(rounds)
        counted = [r for r in numbered or rounds if r.get("counted") == "samples"]
        over = "cluster round" if numbered else "round"
        charts["purity"] = cluster_rounds.purity_figure(numbered)
        if counted:
            parts = counted, groups.drawn, "samples", over
            charts["sizes"] = cluster_changes.sizes_figure(*parts)
    elif several:
        charts["sizes"] = cluster_changes.sizes_figure(rounds, groups.drawn)
        charts["flows"] = cluster_changes.flows_figure(rounds, groups.drawn)
    return {name: figure for name, figure in charts.items() if figure is not None}


def _profile_charts(profiles: dict[str, Any]) -> dict[str, Figure]:
    """The features of each cluster, where there are any."""
    found = profile_figures(profiles) if profiles else {}
    return {f"features_{cluster}": figure for cluster, figure in found.items()}


def _confusion_charts(
    by_client: Sequence[dict[str, Any]], by_sample: dict[str, Any] | None
) -> dict[str, Figure]:
    """Found clusters against the true ones, of samples or of clients who train and are tested."""
    tables, of = ([by_sample], "samples") if by_sample else (by_client, "clients")
    named = zip(("confusion", "confusion_tested"), tables, strict=False)
    return {name: figures.confusion_matrix(table, of) for name, table in named if table["truths"]}


def _pictures(run: RunFiles, groups: Grouping, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Sheets of samples with the colour of their cluster and the names of their clients."""
    return [
        {
            **sheet,
            "colour": groups.colours.get(sheet["cluster"]),
            "clients": [names[i] for i in sheet["clients"]] if names else sheet["clients"],
        }
        for sheet in run.pictures
    ]


def _maps(name: str, of: str, data: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A map as the page shows it, with the glyphs of its shapes; nothing if there is none."""
    if not data:
        return []
    glyphs = {
        view: [(SHAPES[shape], label) for label, shape in shapes.items()]
        for view, shapes in data["shapes"].items()
    }
    return [{"id": name, "of": of, "data": data, "glyphs": glyphs}]


def _bytes_by_part(result: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """What crossed between server and clients: (client step, direction, part, bytes)."""
    return [
        (step, direction, part, amount)
        for step, directions in (result.get("bytes") or {}).items()
        for direction, parts in directions.items()
        for part, amount in parts.items()
    ]


def yes_or_no(values: Sequence[bool]) -> list[str]:
    """Words in place of booleans.

    >>> yes_or_no([True, False])
    ['yes', 'no']
    """
    return ["yes" if value else "no" for value in values]


def _table(name: str, columns: Columns, loss: str, groups: Grouping) -> dict[str, Any]:
    """The client-by-client table as clients.js draws it, without the columns that are absent."""
    fields = (
        # First, for that is the column which a word in the filter is looked for in.
        ("name", "name", "label", None),
        ("client", "client", "label", None),
        ("samples", "samples", "count", None),
        ("cluster", "found cluster", "label", groups.colours),
        ("true", "true cluster", "label", groups.true_colours),
        ("loss", loss, "decimal", None),
        ("accuracy", "accuracy", "percent", None),
        ("attacker", "attacks", "label", None),
        ("excluded", "rounds excluded", "count", None),
        ("untuned_accuracy", "before fine-tuning", "percent", None),
        ("moved", "distance moved", "decimal", None),
        ("model", "model in use", "label", None),
    )
    return {
        "name": name,
        "columns": [
            {
                "key": key,
                "label": label,
                "kind": kind,
                "colours": colours,
                "values": yes_or_no(columns[key]) if key == "attacker" else columns[key],
            }
            for key, label, kind, colours in fields
            if columns.get(key) is not None
        ],
    }
