from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.evaluation import NetworkScorer


def test_metrics_keep_their_names_when_nodes_come_and_go():
    nodes = {1: SimpleNamespace(tested=False), 2: SimpleNamespace(tested=True)}
    scorer = NetworkScorer(SimpleNamespace(roster=SimpleNamespace(nodes=nodes)))
    del nodes[1]
    assert not scorer.tested
