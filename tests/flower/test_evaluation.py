import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie.flower.evaluation import NetworkScorer
from coterie.flower.wire import decode_packet
from tests.flower.fake import IFCA, FakeGrid, an_error, deployed, make_app, simulated, thirds


def test_metrics_keep_their_names_when_nodes_come_and_go():
    nodes = {1: SimpleNamespace(tested=False), 2: SimpleNamespace(tested=True)}
    app = SimpleNamespace(schema=None)
    scorer = NetworkScorer(SimpleNamespace(roster=SimpleNamespace(nodes=nodes), app=app))
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


@pytest.mark.parametrize("silent", [(3,), (1, 2)])
def test_nodes_that_are_silent_in_the_last_evaluation_cost_their_clients(tmp_path, silent):
    app = make_app(*IFCA)
    grid = FakeGrid(app, thirds(tmp_path))
    whole = deployed(tmp_path / "whole", [*IFCA, "evaluate=3"], grid=grid)
    words = [*IFCA, "evaluate=3"]

    class Silenced(FakeGrid):
        def answer(self, node, message):
            reply = super().answer(node, message)
            there = not reply.has_error() and "scores" in decode_packet(reply.content).tensors
            return an_error(reply) if there and node in silent else reply

    run = deployed(tmp_path, words, grid=Silenced(app, thirds(tmp_path)), quorum=0.3, timeout=0.2)
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert clients["client"] == list(range(6))
    answered = 6 - 2 * len(silent)
    for name in ("loss", "x", "y"):
        assert sum(value is not None for value in clients[name]) == answered, name
    assert len(clients["cluster"]) == 6
    assert run.result["scored"] == answered
    assert (tmp_path / "run" / "report.html").exists()
    assert "loss" in run.metrics
    assert torch.equal(run.clusters, whole.clusters)
    assert run.warnings  # that nodes replied with an error


def test_of_clustered_samples_only_draws_from_the_models_are_shown(tmp_path):
    words = ["uifca", "gaussian-clusters", "samples=40", "rounds=2", "restarts=1", "steps=1"]
    run = deployed(tmp_path, words)
    told = json.loads((tmp_path / "run" / "samples.json").read_text())
    assert told["map"] is None
    clusters = told["features"]["clusters"]
    assert all(entry["samples"] is None and entry["draws"] for entry in clusters)
    table = json.loads((tmp_path / "run" / "clients.json").read_text())["sample_clusters"]
    assert table["loss"] is None
    assert run.records[-1]["by_cluster"] == {}
    assert run.records[-1]["counted"] == "samples"
    assert sum(run.records[-1]["sizes"]) == 4 * 40
