"""Features of the samples of clusters, and of draws from their models."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest
import torch

from coterie import Federation
from coterie.report.feature_profiles import FEATURES, feature_profiles, profile_figures


def federation(x, **facts):
    return replace(Federation.from_clients([(x, torch.zeros(len(x)).long())]), **facts)


def test_means_and_quantiles_by_hand():
    # Cluster 1 has 0, 1, ..., 10 in its only feature, cluster 0 one sample of 7.
    x = torch.tensor([*range(11), 7.0])[:, None]
    labels = torch.tensor([1] * 11 + [0])
    data = federation(x, features=("price",))
    told = feature_profiles(data, labels, {1: torch.full((4, 1), 5.0)}, seed=0)
    assert told["features"] == ["price"]
    low, high = told["clusters"]
    assert (low["cluster"], low["samples"]["mean"], low["draws"]) == (0, [7.0], None)
    assert high["samples"] == {"mean": [5.0], "low": [1.0], "high": [9.0]}
    assert high["draws"]["mean"] == [5.0]


def test_of_many_features_those_are_told_in_which_clusters_differ():
    x = torch.zeros(4, 100)
    x[2:, 50:] = 1.0
    told = feature_profiles(federation(x), torch.tensor([0, 0, 1, 1]), {}, seed=0)
    assert told["of"] == 100
    assert len(told["features"]) == FEATURES
    assert told["features"] == sorted(told["features"])
    assert min(told["features"]) >= 50


def test_without_samples_there_are_draws_alone():
    data = federation(torch.ones(1, 3))
    told = feature_profiles(data, None, {0: torch.zeros(5, 3), 1: torch.ones(5, 3)}, seed=0)
    assert [entry["samples"] for entry in told["clusters"]] == [None, None]
    assert told["clusters"][1]["draws"]["mean"] == [1.0] * 3
    assert feature_profiles(data, None, {}, seed=0) is None


def test_images_have_no_profile():
    data = federation(torch.zeros(2, 8, 8))
    assert feature_profiles(data, torch.tensor([0, 1]), {}, seed=0) is None


@pytest.mark.parametrize("features", [1, 3, 60])
def test_charts_are_valid_and_have_what_is_known(features):
    data = federation(torch.arange(4.0 * features).view(4, features))
    draws = {1: torch.full((5, features), torch.nan)}  # of a model that nearly diverged
    told = feature_profiles(data, torch.tensor([0, 0, 0, -1]), draws, seed=0)
    figures = profile_figures(told)
    assert list(figures) == [0, 1]
    for figure in figures.values():
        go.Figure(figure)
    names = {trace["name"] for trace in figures[0]["data"]}
    assert names == {"samples of clients"}
