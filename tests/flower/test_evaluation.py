from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.evaluation import NetworkScorer
from tests.flower.fake import IFCA, deployed, simulated


def test_metrics_keep_their_names_when_nodes_come_and_go():
    nodes = {1: SimpleNamespace(tested=False), 2: SimpleNamespace(tested=True)}
    scorer = NetworkScorer(SimpleNamespace(roster=SimpleNamespace(nodes=nodes)))
    del nodes[1]
    assert not scorer.tested


@pytest.mark.parametrize("with_map", [True, False])
def test_a_mixture_is_scored_by_the_clients_as_it_is_here(tmp_path, with_map):
    there, here = deployed(tmp_path, IFCA), simulated(IFCA)
    shares = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    shares /= shares.sum(1, keepdim=True)
    serving = here.serving._replace(cluster=shares.argmax(1), mixture=shares)
    one, two = (
        run.evaluator.scorer.score(serving, "test", with_map=with_map).summary
        for run in (here, there)
    )
    assert one.metrics == pytest.approx(two.metrics)
    torch.testing.assert_close(one.clients["loss"], two.clients["loss"])
    alone = here.evaluator.scorer.score(here.serving, "test").summary
    assert alone.metrics["loss"] != pytest.approx(one.metrics["loss"])
