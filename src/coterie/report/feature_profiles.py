"""What the features of each cluster are: of its samples, and of draws from its model.

For samples that are vectors; images have sheets (sample_sheets.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core import seeds
from coterie.data.federation import Federation
from coterie.report.figures import Figure, Trace, round_digits
from coterie.report.palette import OTHER, colour
from coterie.report.sample_sheets import CLUSTERS, as_colour_images

FEATURES = 40  # more cannot be told apart: those in which the clusters differ most
SUMMARISED = 2000  # samples of a cluster at most
QUANTILES = (0.1, 0.9)
TICKS = 10  # names below the chart

Summary = dict[str, list[float | None]]  # mean, low and high of each feature


def feature_profiles(
    federation: Federation, labels: Tensor | None, draws: Mapping[int, Tensor], seed: int
) -> dict[str, Any] | None:
    """Means and quantiles of features: of the samples of each cluster, and of draws from its model.

    `labels` [N] are the clusters of training samples, None where samples stay with the clients.
    None where samples are images or no vectors at all, and where there is nothing to tell.
    """
    x = federation.train.x
    if not isinstance(x, Tensor) or as_colour_images(x[:1]) is not None:
        return None
    samples: dict[int, Tensor] = {}  # cluster -> [n, f]
    if labels is not None:
        sizes = torch.bincount(labels[labels >= 0])
        largest = sizes.argsort(descending=True, stable=True)[:CLUSTERS]
        for j in largest[sizes[largest] > 0].tolist():
            members = torch.nonzero(labels == j).flatten()
            order = torch.randperm(len(members), generator=seeds.generator(seed, "profile", j))
            samples[j] = x[members[order[:SUMMARISED]]].flatten(1).double()
    drawn = {j: each.flatten(1).double() for j, each in draws.items()}
    clusters = sorted([*samples, *(j for j in drawn if j not in samples)][:CLUSTERS])
    if not clusters:
        return None
    means = torch.stack([(samples[j] if j in samples else drawn[j]).mean(0) for j in clusters])
    differ = means.nan_to_num().var(0, correction=0)
    chosen = differ.argsort(descending=True, stable=True)[:FEATURES].sort().values
    names = federation.features
    return {
        "features": [names[f] if names else f for f in chosen.tolist()],
        "of": len(differ),
        "clusters": [
            {
                "cluster": j,
                "samples": summarise(samples[j][:, chosen]) if j in samples else None,
                "draws": summarise(drawn[j][:, chosen]) if j in drawn else None,
            }
            for j in clusters
        ],
    }


def summarise(values: Tensor) -> Summary:
    """The mean of each column of values [n, f], and the quantiles below and above it."""
    low, high = (values.quantile(q, 0).tolist() for q in QUANTILES)
    mean = values.mean(0).tolist()
    return {
        name: [round_digits(value) for value in column]
        for name, column in (("mean", mean), ("low", low), ("high", high))
    }


def profile_figures(profiles: dict[str, Any]) -> dict[int, Figure]:
    """A chart for each cluster: its samples as a line in a band, draws from its model as points."""
    features: Sequence[Any] = profiles["features"]
    places = list(range(len(features)))
    step = max(1, -(-len(features) // TICKS))
    axis = {
        "title": {"text": "feature"},
        "tickvals": places[::step],
        "ticktext": [str(name) for name in features[::step]],
        "showgrid": False,
    }
    figures = {}
    for entry in profiles["clusters"]:
        traces: list[Trace] = []
        if entry["samples"]:
            traces += _band_of_samples(entry["samples"], features, colour(entry["cluster"]))
        if entry["draws"]:
            traces.append(_points_of_draws(entry["draws"], features))
        figures[entry["cluster"]] = {
            "data": traces,
            "layout": {"hovermode": "closest", "xaxis": axis, "yaxis": {"zeroline": False}},
        }
    return figures


def _band_of_samples(summary: Summary, features: Sequence[Any], hue: str) -> list[Trace]:
    places, high, low = list(range(len(features))), summary["high"], summary["low"]
    shared = {"type": "scatter", "name": "samples of clients", "legendgroup": "samples"}
    band = {
        **shared,
        "mode": "lines",
        "x": [*places, *reversed(places)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": hue + "38",
        "line": {"width": 0, "color": hue},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    mean = {
        **shared,
        "mode": "lines+markers" if len(features) == 1 else "lines",
        "x": places,
        "y": summary["mean"],
        "line": {"color": hue, "width": 2, "dash": "solid"},
        **_hover(summary, features),
    }
    return [band, mean]


def _points_of_draws(summary: Summary, features: Sequence[Any]) -> Trace:
    def distance(name: str) -> list[float]:
        pairs = zip(summary[name], summary["mean"], strict=True)
        return [0.0 if a is None or b is None else abs(a - b) for a, b in pairs]

    return {
        "type": "scatter",
        "mode": "markers",
        "name": "draws from the model",
        "x": list(range(len(features))),
        "y": summary["mean"],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": distance("high"),
            "arrayminus": distance("low"),
            "color": OTHER,
            "thickness": 1,
            "width": 2,
        },
        "marker": {"size": 5, "color": OTHER, "line": {"width": 0}},
        **_hover(summary, features),
    }


def _hover(summary: Summary, features: Sequence[Any]) -> dict[str, Any]:
    rows = zip(features, summary["low"], summary["high"], strict=True)
    return {
        "customdata": [[str(name), low, high] for name, low, high in rows],
        "hovertemplate": "feature %{customdata[0]}<br>mean %{y:.4~g}, "
        "80% from %{customdata[1]:.4~g} to %{customdata[2]:.4~g}",
    }
