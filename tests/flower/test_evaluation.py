import json
import warnings
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from coterie import IFCA as Method
from coterie import Ditto, FedAvg, FedSGD, FeSEM, HypCluster, Local, PerFedAvg, simulate
from coterie.checks import small_task
from coterie.core.algorithm import Serving
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.evaluation.probabilities import ProbabilitySums
from coterie.evaluation.sums import SummedScores
from coterie.flower.evaluation import NetworkScorer, ScoreExchange, SumExchange
from coterie.flower.quality import OF_CONSTANT
from coterie.flower.replies import REPLY_HEADER
from coterie.flower.wire import BadPacket, Packet, decode_packet
from tests.flower.fake import (
    IFCA,
    FakeGrid,
    an_error,
    deployed,
    make_app,
    metrics_alike,
    simulated,
    thirds,
)
from tests.flower.small import SmallApp, SmallGrid, run_over


def test_metrics_keep_their_names_when_nodes_come_and_go():
    nodes = {1: SimpleNamespace(tested=False), 2: SimpleNamespace(tested=True)}
    network = SimpleNamespace(
        roster=SimpleNamespace(nodes=nodes),
        app=SimpleNamespace(schema=None),
        validation_sizes=torch.tensor([0, 3]),
    )
    scorer = NetworkScorer(network)
    del nodes[1]
    network.validation_sizes = torch.tensor([0, 0])
    assert not scorer.tested
    assert scorer.validated


@pytest.mark.parametrize(
    "words",
    [IFCA, [*IFCA, "withhold=clusters"], [*IFCA, "evaluate=2"], ["local", *IFCA[1:6], "rounds=3"]],
    ids=" ".join,
)
def test_clients_score_what_they_hold_out_as_it_is_scored_here(tmp_path, words):
    words = [*words, "validation=0.04"]  # half a sample each: some hold out none
    there, here = deployed(tmp_path, words), simulated(words)
    assert 0 < int((here.federation.validation.sizes > 0).sum()) < 6
    names = {name for name in here.metrics if name.startswith("validation_")}
    assert {"validation_loss", "validation_accuracy"} <= names
    for name in names:
        alone = ({name: run.metrics[name]} for run in (there, here))
        assert metrics_alike(*alone), name


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


# Two clients of every node change places, with their data and so with their clusters.
SWAPPED = torch.tensor([1, 0, 2, 4, 3, 5, 7, 6, 8])


@pytest.mark.parametrize(
    "algorithm", [Method(k=2, start="random"), HypCluster(k=2, start="random")], ids=str
)
@pytest.mark.parametrize("withhold", ["clusters", "nothing"])
def test_where_clusters_are_withheld_the_server_cannot_tell_clients_of_a_node_apart(
    tmp_path, algorithm, withhold
):
    seen = []
    for name, order in (("one", None), ("other", SWAPPED)):
        app = SmallApp(algorithm, [8] * 9, order=order, rounds=2, withhold=withhold)
        grid = SmallGrid(app, tmp_path / name)
        run_over(grid, app)
        seen.append([each for each in grid.uploaded + grid.scored if each[1].get("trains") != 0])
    assert len(seen[0]) == len(seen[1]) > 6
    pairs = [
        (one[2][name].double(), other[2][name].double())
        for one, other in zip(*seen, strict=True)
        for name in one[2]
    ]
    alike = [one.shape == other.shape and torch.allclose(one, other) for one, other in pairs]
    assert all(alike) == (withhold == "clusters")


def test_where_clusters_are_withheld_nobody_is_placed_on_a_map(tmp_path):
    for words in (IFCA, ["fedavg", *IFCA[1:6], "rounds=2"]):
        out = tmp_path / words[0]
        run = deployed(out, [*words, "withhold=clusters"])
        clients = json.loads((out / "run" / "clients.json").read_text())
        assert clients["map"] == ""
        assert clients["clients"]["x"] in (None, [None] * 6)
        assert (out / "run" / "report.html").exists()
        assert run.metrics["accuracy"] == pytest.approx(simulated(words).metrics["accuracy"])


@pytest.mark.filterwarnings("ignore:node . .* is late with score:coterie.CoterieWarning")
@pytest.mark.parametrize("silent", [(3,), (1, 2, 3)])
def test_nodes_that_are_silent_cost_their_clients_where_clusters_are_withheld(tmp_path, silent):
    def fault(node, header):
        return "lost" if header["do"] == "score" and node in silent else None

    network = {"timeout": 0.005, "patience": 0.3, "quorum": 0.3}
    app = SmallApp(Method(k=2), network=network, rounds=2, withhold="clusters")
    grid = SmallGrid(app, tmp_path, fault)
    if len(silent) == 3:
        with pytest.raises(CoterieError, match="0 of 9 clients replied"):
            run_over(grid, app)
        return
    run = run_over(grid, app)
    assert run.evaluation.serving.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert int(run.evaluation.groups.sizes.sum()) == 6
    assert set(run.records[-1]["by_cluster"]) == {"accuracy", "loss"}


def test_a_client_that_is_alone_on_its_node_is_named_where_clusters_are_withheld(tmp_path):
    sizes = {"small": [6, 7, 8, 9], "large": [6, 7, 8, 9, 5, 6]}
    for name, own in sizes.items():
        app = SmallApp(Method(k=2, start="random"), own, rounds=1, withhold="clusters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoterieWarning)
            run = run_over(SmallGrid(app, tmp_path / name), app)
        alone = [text for text in run.warnings if "alone on it: 0, 1" in text]
        assert len(alone) == (name == "small")


def sums(**change):
    good = {
        "total": torch.rand(2 + 3 * 3, dtype=torch.float64),
        "clients": torch.tensor([2, 0]),
        "metrics": torch.rand(4, 2, dtype=torch.float64) * torch.tensor([1.0, 0.0]),
        "known": torch.tensor([[2, 0]] * 4),
    }
    tensors = {name: value for name, value in (good | change).items() if value is not None}
    header = {"fields": list(tensors), "kept": False, "lost": [], "seconds": 0.1, "startup": 0.0}
    return Packet(header, tensors)


IDS = torch.tensor([4, 7])
BLIND = Serving(torch.zeros(2, 5), IDS, torch.tensor([-1, -1]))


def test_sums_that_can_be_true_are_read():
    found = SumExchange(BLIND, "test", small_task()).read(IDS, sums())
    assert found.upload.clients.tolist() == [[2, 0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clients": torch.tensor([1, 2])}, "2 together"),
        ({"clients": torch.tensor([3, -1])}, "2 together"),
        ({"clients": torch.tensor([2.0, 0.0])}, "whole numbers"),
        ({"clients": torch.tensor([2])}, "one for each cluster"),
        ({"metrics": torch.ones(4, 3, dtype=torch.float64)}, "sums of accuracy, balanced"),
        ({"metrics": torch.ones(2, 2, dtype=torch.float64)}, "sums of accuracy, balanced"),
        ({"metrics": torch.ones(4, 2)}, "sums of accuracy, balanced"),
        ({"known": torch.ones(4, 2)}, "known must be"),
        ({"known": torch.tensor([[3, 0]] * 4)}, "from 0 to the clients of each"),
        ({"known": torch.tensor([[2, -1]] * 4)}, "from 0 to the clients of each"),
        ({"metrics": torch.full((4, 2), torch.nan, dtype=torch.float64)}, "must be a number"),
        ({"metrics": torch.full((4, 2), 2.5, dtype=torch.float64)}, "from 0 to the clients"),
        ({"total": torch.zeros(1)}, "what scores add up to"),
        ({"total": torch.tensor(1.0)}, "what scores add up to"),
        ({"total": None}, "score returns total, clients, metrics"),
        ({"scores": torch.ones(2, 5)}, "score returns total, clients, metrics"),
    ],
    ids=str,
)
def test_sums_that_clients_cannot_have_made_are_refused(change, says):
    with pytest.raises(BadPacket, match=says):
        SumExchange(BLIND, "test", small_task()).read(IDS, sums(**change))


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


QUALITY = {"scores", "clients", *OF_CONSTANT, *ProbabilitySums._fields}
TUNED = [
    Method(k=2, start="random"),
    FeSEM(k=2),
    FedAvg(optimizer="adam", batch=2),
    FedSGD(),
    Local(),
    Ditto(),
    PerFedAvg(),
]


@pytest.mark.parametrize("algorithm", TUNED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("who", ["all", "outliers"])
def test_fine_tuned_models_are_scored_as_here_and_do_not_leave_their_node(tmp_path, algorithm, who):
    settings = {"rounds": 2, "finetune": 3, "finetune_for": who, "finetune_distance": 1.0}
    app = SmallApp(algorithm, **settings)
    grid = SmallGrid(app, tmp_path)
    there = run_over(grid, app)
    here = simulate(algorithm, app.federation, app.task, **settings)
    here.metrics.pop("davies_bouldin", None)  # needs the models
    assert metrics_alike(there.metrics, here.metrics, 1e-5)
    torch.testing.assert_close(there.personal.moved, here.personal.moved, rtol=1e-4, atol=1e-6)
    assert torch.equal(there.personal.uses_own, here.personal.uses_own)
    one, two = (run.result["baseline"] for run in (there, here))
    assert metrics_alike(one, two)
    if who == "outliers":
        assert 0 < int(here.personal.uses_own.sum()) < 9
    tuned = [tensors for _, header, tensors in grid.scored if header["tune"]]
    judged = [tensors for tensors in tuned if "histogram" in tensors]
    tuned = [tensors for tensors in tuned if "histogram" not in tensors]
    assert len(tuned) == len(judged) == 3
    assert all(set(tensors) == QUALITY for tensors in judged)
    s = 2 + 3 * app.federation.outputs
    for tensors in tuned:
        assert {name: list(value.shape[1:]) for name, value in tensors.items()} == {
            "scores": [s],
            "untuned": [s],
            "moved": [1],
        }
    with pytest.raises(CoterieError, match="does not leave it"):
        there.model(int(torch.nonzero(here.personal.uses_own)[0]))


def test_where_clusters_are_withheld_nodes_add_up_the_scores_of_fine_tuned_models(tmp_path):
    settings = {"rounds": 2, "finetune": 3, "withhold": "clusters"}
    app = SmallApp(Method(k=2), **settings)
    grid = SmallGrid(app, tmp_path)
    there = run_over(grid, app)
    here = simulate(Method(k=2), app.federation, app.task, **settings)
    assert metrics_alike(there.metrics, here.metrics, 1e-5)
    assert there.metrics["loss"] != there.metrics["untuned_loss"]
    assert there.personal.moved is None
    sent = [set(tensors) for _, _, tensors in grid.scored]
    assert all(names in (set(SummedScores._fields), QUALITY) for names in sent)


def test_a_node_fine_tunes_only_where_its_app_says_so(tmp_path):
    app = SmallApp(FedAvg(), rounds=1)
    grid = SmallGrid(app, tmp_path)
    run = run_over(grid, app)
    node = grid.workers[1].node
    message = next(
        m for n, m in grid.sent if n == 1 and decode_packet(m.content).header["do"] == "score"
    )
    packet = decode_packet(message.content)
    assert "scores" in node.answer(packet).tensors
    packet.header["tune"] = True
    with pytest.raises(BadPacket, match="are not to fine-tune"):
        node.answer(packet)
    assert "tuned" not in run.metrics


def test_a_distance_that_cannot_be_is_refused():
    exchange = ScoreExchange(
        Serving(torch.zeros(1, 2), torch.arange(2), torch.zeros(2).long()), "test", tuned=True
    )
    tensors = {"scores": torch.ones(2, 3), "untuned": torch.ones(2, 3)}
    for moved in (-1.0, float("nan")):
        header = {**dict.fromkeys(REPLY_HEADER, 0), "fields": exchange.fields, "kept": False}
        reply = Packet(header, {**tensors, "moved": torch.tensor([[1.0], [moved]])})
        with pytest.raises(BadPacket, match="how far a model moved"):
            exchange.read(torch.arange(2), reply)
