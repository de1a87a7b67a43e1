"""Rounds by the number of their cluster round."""

import plotly.graph_objects as go

from coterie.report.cluster_rounds import by_cluster_round, purity_figure


def told(number, cluster_round, sizes, **metrics):
    return {
        "round": number,
        "sizes": sizes,
        "metrics": metrics | {"cluster_round": float(cluster_round)},
    }


def test_the_last_sizes_and_metrics_of_a_cluster_round_are_its_own():
    rounds = [
        told(1, 1, [9, 1], purity=0.5),
        told(2, 1, [8, 2], purity=0.75),
        told(3, 2, [5, 5], purity=0.9),
        told(4, 2, [4, 6]),  # this round was not evaluated
    ]
    found = by_cluster_round(rounds)
    assert [(r["round"], r["sizes"]) for r in found] == [(1, [8, 2]), (2, [4, 6])]
    figure = purity_figure(found)
    assert (figure["data"][0]["x"], figure["data"][0]["y"]) == ([1, 2], [0.75, 0.9])
    assert figure["layout"]["xaxis"]["title"]["text"] == "cluster round"
    go.Figure(figure)


def test_rounds_that_tell_of_none_have_none():
    assert by_cluster_round([{"round": 1, "metrics": {"purity": 1.0}}, {"round": 2}]) == []
    assert purity_figure([]) is None
