"""Runs in which samples are clustered and not clients."""

import json
import math
from dataclasses import replace

import pytest
import torch

import coterie
from coterie import Centre, Federation, KFed
from coterie.cli.progress_bar import outcome_text
from coterie.core.errors import CoterieWarning
from coterie.engine.simulator import Simulator
from coterie.experiment.plan import make_plan
from coterie.experiment.run import Run
from coterie.experiment.settings import RunSettings


def federation(**facts):
    """Two clients with samples at 0, 1 and 10, whose labels say so but for one mistake."""
    x = torch.tensor([0.0, 1.0, 10.0])[:, None]
    labels = [torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])]
    return replace(Federation.from_clients([(x, y) for y in labels]), **facts)


def ran(data, **settings):
    return coterie.simulate(KFed(k=2), data, Centre(1), rounds=1, **settings)


def test_samples_are_scored_by_their_labels():
    numbers = ran(federation(sample_clusters=True)).metrics
    # One of six samples is in the wrong cluster.
    assert numbers["accuracy"] == numbers["purity"] == pytest.approx(5 / 6)
    assert 0 < numbers["ari"] < 1
    # Of each client two samples are 1/2 from their centre.
    assert numbers["train_loss"] == pytest.approx(2 / 3 * 0.25)


def test_labels_that_are_no_clusters_are_not_looked_at():
    numbers = ran(federation(), chunk=1).metrics
    assert set(numbers) == {"train_loss", "clusters"}
    assert numbers["clusters"] == 2


def test_the_loss_of_each_sample_is_that_of_its_own_model():
    data = federation(sample_clusters=True)
    run = ran(data)
    low, high = run.models.flatten().argsort().tolist()
    assert run.labels.tolist() == [low, low, high, low, low, high]
    tables = run.evaluator.tables(run.serving, run.evaluation, run.training.outcome.trained)
    assert tables["clients"]["loss"] == pytest.approx([2 / 3 * 0.25] * 2)
    assert tables["sample_clusters"] == {
        "cluster": [0, 1],
        "samples": [4, 2] if low == 0 else [2, 4],
        "clients": [2, 2],
        # Those at 0 and 1 are 1/2 from their centre, those at 10 are the other one.
        "loss": [0.25, 0.0] if low == 0 else [0.0, 0.25],
        "true": [0, 1],
        "overlaps": [[3, 1], [0, 2]] if low == 0 else [[0, 2], [3, 1]],
    }


def test_the_page_tells_of_samples(tmp_path):
    run = ran(federation(sample_clusters=True), folder=tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Samples are clustered, not clients" in text
    assert "samples of true cluster" in text
    assert "2 true" in text
    assert "Each client has its own model" not in text
    assert run.report(tmp_path / "again.html").exists()
    unknown = ran(federation(), folder=tmp_path / "unknown")
    text = (unknown.folder.path / "report.html").read_text()
    assert "Samples are clustered, not clients" in text
    assert "samples of true cluster" not in text


@pytest.fixture
def table(tmp_path):
    """Shops whose rows are of two kinds, far apart."""
    rows = ["shop,kind,price,weight"]
    for i in range(40):
        kind = "large" if i % 2 else "small"
        rows.append(f"{'ab'[i // 20]},{kind},{10 * (i % 2) + i / 100},{7 * (i % 2) - i / 100}")
    path = tmp_path / "shops.csv"
    path.write_text("\n".join(rows))
    return path


def test_a_table_is_clustered_and_its_label_only_scores(table):
    runs = []
    for label in ("kind", "price"):
        words = ["k-fed", str(table), "client=shop", f"label={label}", "features=weight", "k=2"]
        plan = make_plan(words)
        runs.append(plan.run(plan.config()).complete())
    named, real = runs
    assert named.metrics["accuracy"] == named.metrics["ari"] == 1.0
    assert "ari" not in real.metrics
    assert torch.equal(named.labels, real.labels)


@pytest.mark.parametrize("algorithm", ["k-fed", "uifca"])
def test_a_table_without_a_label_is_clustered_all_the_same(table, tmp_path, algorithm):
    words = [algorithm, str(table), "client=shop", "features=weight", "k=2"]
    named = make_plan([*words, "label=kind"])
    plan = make_plan(words)
    run = plan.run(plan.config())
    run.use(tmp_path / "run")
    run.complete()
    assert torch.equal(run.labels, named.run(named.config()).complete().labels)
    assert run.metrics["clusters"] == 2
    assert not {"ari", "purity", "accuracy"} & set(run.metrics)
    samples = json.loads((tmp_path / "run" / "clients.json").read_text())["sample_clusters"]
    assert samples["true"] is None
    assert samples["overlaps"] is None
    assert "Samples are clustered, not clients" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("method", [["k-fed"], ["uifca"], ["uifca", "fit=exact"]])
@pytest.mark.parametrize("k", [1, 3, 9])
def test_clusters_may_be_one_or_more_than_a_client_has_samples(tmp_path, method, k):
    rows = ["shop,size,price,same", "a,1,1,5", "a,1,,5", "b,9,7,5", "b,9,8,5", "b,,8,5"]
    (tmp_path / "shops.csv").write_text("\n".join(rows))
    method, *settings = method
    words = [method, str(tmp_path / "shops.csv"), "client=shop", f"k={k}", *settings]
    plan = make_plan(words)
    with pytest.warns(CoterieWarning, match=r"columns left out: same \(constant\)"):
        run = plan.run(plan.config())
    run.complete()
    assert run.federation.train.sizes.tolist() == [1, 2]
    assert 1 <= run.metrics["clusters"] <= k
    assert math.isfinite(run.metrics["loss"])
    assert run.models.isfinite().all()
    assert int(run.labels.min()) >= 0
    assert int(run.labels.max()) < k


@pytest.mark.parametrize("fit", ["descent", "exact"])
def test_samples_that_are_equal_are_a_cluster_of_models_that_stay_finite(tmp_path, fit):
    rows = ["shop,size", *(f"{'ab'[i % 4 // 2]},{5 + i % 2}" for i in range(40))]
    (tmp_path / "shops.csv").write_text("\n".join(rows))
    words = ["uifca", str(tmp_path / "shops.csv"), "client=shop", "k=2", f"fit={fit}"]
    plan = make_plan(words)
    run = plan.run(plan.config()).complete()
    assert run.models.isfinite().all()
    assert not run.warnings
    if fit == "exact":
        assert run.labels.unique().tolist() == [0, 1]


def test_the_page_of_a_table_has_the_names_of_its_classes(table, tmp_path):
    plan = make_plan(["k-fed", str(table), "client=shop", "label=kind", "k=2"])
    run = plan.run(plan.config())
    run.use(tmp_path / "run")
    run.complete()
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert sorted(clients["sample_clusters"]["true"]) == ["large", "small"]
    assert sum(clients["sample_clusters"]["samples"]) == 8  # a fifth of the rows is the test part


def test_a_cohort_may_have_some_of_its_samples():
    simulator = Simulator(federation().train, Centre(1))
    cohort = simulator.cohort(torch.arange(2), 0, (0,))
    some = cohort.among(torch.tensor([[True, False, True], [False, False, False]]))
    assert some.size.tolist() == [2, 0]
    assert [x.flatten().tolist() for x, _ in some] == [[0.0, 10.0], []]
    assert some.score(torch.ones(2, 1)).tolist() == [[2.0, 82.0], [0.0, 0.0]]
    assert some.loss(torch.ones(1, 1)).flatten().tolist() == [41.0, torch.inf]


class Answering:
    """Of every algorithm, served and scored are only some clients: the others are silent."""

    def __init__(self, scorer, served, scored):
        self.scorer, self.served, self.scored = scorer, torch.tensor(served), torch.tensor(scored)
        self.tested = scorer.tested

    def __getattr__(self, name):
        return getattr(self.scorer, name)

    def clients(self, part):
        return self.scorer.clients(part).only(self.served.long())

    def score(self, serving, *arguments, **options):
        serving = serving.for_clients(torch.isin(serving.ids, self.scored.long()))
        return self.scorer.score(serving, *arguments, **options)

    def map_rows(self, serving):
        return self.scorer.map_rows(serving.for_clients(torch.isin(serving.ids, self.scored)))


SOME = [([0, 1, 3, 5], [1, 3]), ([2], [2]), ([1, 2, 4], []), ([], []), ([0, 1, 2, 3, 4, 5], [0])]
METHODS = [
    coterie.IFCA(k=3, start="random"),
    coterie.FedAvg(),
    coterie.Local(),
    coterie.Ditto(steps=1),
    coterie.CFL(),
]


@pytest.mark.parametrize(("served", "scored"), SOME)
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
def test_every_client_has_a_row_and_what_is_unknown_is_null(algorithm, served, scored, tmp_path):
    data, task = coterie.load("rotated-digits", clients=6)
    settings = RunSettings(rounds=4)
    run = Run(algorithm, data, task, settings)
    run.training.evaluator.scorer = Answering(run.evaluator.scorer, served, scored)
    run.use(tmp_path / "r")
    run.complete()
    known = sorted(set(served) & set(scored))
    clients = json.loads((tmp_path / "r" / "clients.json").read_text())["clients"]
    assert clients["client"] == list(range(6))
    assert len(clients["samples"]) == len(clients["true"]) == 6
    for name, where in (("cluster", served), ("loss", known), ("x", known), ("y", known)):
        assert [i for i, value in enumerate(clients[name]) if value is not None] == where, name
    if known:
        there = [i for i, value in enumerate(clients["accuracy"]) if value is not None]
        assert there == known
        accuracy = [value for value in clients["accuracy"] if value is not None]
        assert run.metrics["accuracy_macro"] == pytest.approx(sum(accuracy) / len(known))
    else:
        assert not {"accuracy", "loss", "accuracy_macro"} & set(run.metrics)
    assert run.result["scored"] == run.records[-1]["scored"] == len(known)
    assert (run.clusters >= 0).nonzero().flatten().tolist() == served
    assert "report" in (tmp_path / "r" / "report.html").read_text()
    assert len(run.clients) == 6
    assert run.clients["loss"].notna().sum() == len(known)
    assert outcome_text(run)


def test_samples_of_clients_that_are_not_served_have_no_label():
    data = federation(sample_clusters=True)
    run = Run(KFed(k=2), data, Centre(1), RunSettings(rounds=1))
    run.training.evaluator.scorer = Answering(run.evaluator.scorer, [1], [1])
    run.complete()
    assert (run.labels >= 0).tolist() == [False] * 3 + [True] * 3
    nobody = Run(KFed(k=2), data, Centre(1), RunSettings(rounds=1))
    nobody.training.evaluator.scorer = Answering(nobody.evaluator.scorer, [], [])
    nobody.complete()
    assert nobody.labels.tolist() == [-1] * 6


def test_each_round_has_the_mean_loss_of_the_samples_in_each_cluster():
    record = ran(federation(), chunk=1).records[-1]
    assert sorted(record["by_cluster"]["loss"]) == [0.0, 0.25]
    # Three clusters of samples at two places: one is empty, and has no loss.
    x = torch.tensor([0.0, 0.0, 4.0, 4.0])[:, None]
    data = Federation.from_clients([(x, torch.zeros(4, dtype=torch.long))] * 2)
    run = coterie.simulate(KFed(k=3, k_local=2), data, Centre(1), rounds=1)
    losses = run.records[-1]["by_cluster"]["loss"]
    assert sorted(losses, key=str) == [0.0, 0.0, None]
    assert run.training.outcome.tables["sample_clusters"]["loss"] == losses
