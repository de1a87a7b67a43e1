"""The quality of models in full: equal to scikit-learn's on what the served models predict."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, r2_score, roc_auc_score

import coterie
from coterie import IFCA as Ifca
from coterie import Classification, Ditto, FedAvg, Federation, Local, PerFedAvg, Regression
from coterie.evaluation import quality
from tests.evaluation.fedem import FedEM


def draw(classes, seed=0, clients=6):
    """Clients with training and test samples; the last has one class or target only."""
    rng = np.random.default_rng(seed)
    parts = []
    for i in range(clients):
        x = rng.normal(size=(24, 3)).astype(np.float32)
        scores = np.stack([x @ rng.normal(size=3) + (-1) ** i * x[:, 0] for _ in range(classes)], 1)
        y = scores.argmax(1) if classes > 1 else scores[:, 0].astype(np.float32)
        parts.append((x, np.zeros_like(y) if i == clients - 1 else y))
    return Federation.from_clients(
        [(x[:16], y[:16]) for x, y in parts], test=[(x[16:], y[16:]) for x, y in parts]
    )


def predictions(run, part="test"):
    """What the models of all clients give for their samples, with the labels."""
    samples = run.federation.parts[part]
    outputs = []
    for i in range(len(run.federation)):
        rows = slice(int(samples.offsets[i]), int(samples.offsets[i + 1]))
        with torch.no_grad():
            outputs.append(run.model(i)(samples.x[rows]))
    return torch.cat(outputs), samples.y


METHODS = [Ifca(k=2), FedAvg(), Local(), Ditto(), PerFedAvg(), FedEM(k=2)]


@pytest.mark.parametrize("finetune", [0, 2])
@pytest.mark.parametrize("method", METHODS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_judged_by_what_the_served_models_predict(method, classes, finetune):
    if finetune and isinstance(method, FedEM):
        return
    task = Classification(lambda: torch.nn.Linear(3, classes))
    run = coterie.simulate(method, draw(classes), task, rounds=2, finetune=finetune)
    logits, y = predictions(run)
    p = logits.double().softmax(1)
    score = p[:, 1] if classes == 2 else p
    expected = roc_auc_score(y, score, multi_class="ovr")
    assert run.metrics["auc"] == pytest.approx(expected, abs=1e-6)
    expected = average_precision_score(y, score)
    assert run.metrics["average_precision"] == pytest.approx(expected, abs=1e-6)
    expected = log_loss(y, p, labels=range(classes))
    assert run.metrics["log_loss"] == pytest.approx(expected, abs=1e-6)
    assert ("untuned_auc" in run.metrics) == bool(finetune)
    details = run.training.outcome.quality[""].details
    assert details["clients_with_auc"] == 5
    assert not details["binned"]
    assert sum(map(sum, details["confusion"])) == len(y)


def test_a_constant_predicts_the_shares_of_the_classes_trained_on():
    data = draw(3, 4)
    run = coterie.simulate(FedAvg(), data, Classification(torch.nn.Linear(3, 3)), rounds=1)
    shares = torch.bincount(data.train.y, minlength=3).double() / len(data.train.y)
    y = data.test.y
    found = run.result["baseline"]
    assert found["accuracy"] == pytest.approx(float((y == shares.argmax()).double().mean()))
    assert found["log_loss"] == pytest.approx(log_loss(y, shares.expand(len(y), 3)), abs=1e-6)
    assert found["loss"] == pytest.approx(found["log_loss"], abs=1e-6)
    assert found["auc"] == found["auc_macro"] == 0.5
    assert found["balanced_accuracy"] == pytest.approx(1 / len(y.unique()))


def test_a_constant_predicts_the_mean_of_the_targets_trained_on():
    data = draw(1)
    run = coterie.simulate(FedAvg(lr=0.01), data, Regression(torch.nn.Linear(3, 1)), rounds=2)
    mean, y = data.train.y.double().mean(), data.test.y.double()
    found = run.result["baseline"]
    assert found["r2"] == pytest.approx(r2_score(y, mean.expand(len(y))), abs=1e-6)
    assert found["mae"] == pytest.approx(float((y - mean).abs().mean()), rel=1e-6)
    output, _ = predictions(run)
    assert run.metrics["r2"] == pytest.approx(r2_score(y, output[:, 0]), abs=1e-6)
    assert run.result["metric"] == "r2"


def test_each_group_is_judged_alone():
    run = coterie.simulate(Ifca(k=2), draw(2), Classification(torch.nn.Linear(3, 2)), rounds=2)
    groups = run.training.outcome.quality[""].groups
    logits, y = predictions(run)
    cluster = run.clusters.repeat_interleave(run.federation.test.sizes)
    assert sum(row["clients"] for row in groups) == 6
    for row in groups:
        own = cluster == row["cluster"]
        assert row["samples"] == int(own.sum())
        right = (logits.argmax(1) == y)[own].double().mean()
        assert row["metrics"]["accuracy"] == pytest.approx(float(right))
        if "auc" in row["metrics"]:
            score = (logits[:, 1] - logits[:, 0])[own].double()
            assert row["metrics"]["auc"] == pytest.approx(roc_auc_score(y[own], score), abs=1e-6)


def test_of_very_many_predictions_histograms_are_kept(monkeypatch):
    task, data = Classification(torch.nn.Linear(3, 2)), draw(2)
    exact = coterie.simulate(FedAvg(), data, task, rounds=1)
    monkeypatch.setattr(quality, "MOST_RANKED", 50)
    run = coterie.simulate(FedAvg(), data, task, rounds=1)
    details = run.training.outcome.quality[""].details
    assert details["binned"]
    off = abs(run.metrics["auc"] - exact.metrics["auc"])
    assert off <= details["auc_error"] + 1e-12 < 0.02


def test_where_clusters_are_withheld_no_group_is_told():
    task, settings = Classification(torch.nn.Linear(3, 2)), {"rounds": 2, "withhold": "clusters"}
    run = coterie.simulate(Ifca(k=2), draw(2), task, **settings)
    known = coterie.simulate(Ifca(k=2), draw(2), task, rounds=2)
    assert run.training.outcome.quality[""].groups == []
    for name in ("auc", "average_precision", "auc_macro", "ece", "log_loss"):
        assert run.metrics[name] == pytest.approx(known.metrics[name])
    assert run.result["baseline"] == pytest.approx(known.result["baseline"])


def test_a_run_that_is_judged_by_auc_has_it_in_every_round():
    task = Classification(torch.nn.Linear(3, 2))
    settings = {"rounds": 2, "metric": "auc", "validation": 0.25}
    run = coterie.simulate(FedAvg(), draw(2), task, **settings)
    kept = run.records[run.result["best_round"] - 1]
    assert kept["metrics"]["auc"] == run.metrics["auc"]
    assert all("validation_auc" in record["metrics"] for record in run.records)
    plain = coterie.simulate(FedAvg(), draw(2), task, rounds=2)
    assert "auc" not in plain.records[-1]["metrics"]
    assert plain.result["metric"] == "accuracy"


def test_a_rare_class_makes_auc_the_judge():
    data = draw(2)
    rare = torch.arange(len(data.train.y)) % 8 == 0
    data.train.y[:] = rare.long()
    run = coterie.simulate(FedAvg(), data, Classification(torch.nn.Linear(3, 2)), rounds=1)
    assert run.result["metric"] == "auc"


def unseen():
    """Clients that train, and others of the same true clusters that are tested."""
    known, others = draw(2).train, draw(2, 1).train
    parts = [
        [(each.x[a:b], each.y[a:b]) for a, b in itertools.pairwise(each.offsets.tolist())]
        for each in (known, others)
    ]
    truth = [0, 1] * 3
    options = {"unseen": True, "cluster": truth, "test_cluster": truth}
    return Federation.from_clients(parts[0], test=parts[1], **options)


@pytest.mark.parametrize("method", [Ifca(k=2), Local()], ids=lambda each: type(each).__name__)
def test_unseen_clients_are_judged_and_models_of_ones_own_on_their_peers(method):
    task = Classification(lambda: torch.nn.Linear(3, 2))
    run = coterie.simulate(method, unseen(), task, rounds=1, finetune=1)
    for prefix in ("", "untuned_"):
        # The loss is that of the same predictions, which the evaluation of a round scored.
        assert run.metrics[f"{prefix}log_loss"] == pytest.approx(run.metrics[f"{prefix}loss"])
        assert 0 < run.metrics[f"{prefix}auc"] < 1


def test_a_model_that_has_diverged_is_judged_too():
    run = coterie.simulate(FedAvg(), draw(2), Classification(torch.nn.Linear(3, 2)), rounds=1)
    serving = run.serving._replace(models=torch.full_like(run.models, torch.nan))
    sums = run.evaluator.scorer.measure(serving, "test")
    found = quality.read_quality(run.task, sums, None).metrics
    assert found["log_loss"] == torch.inf
    assert found["auc"] == 0.5


def test_honest_clients_are_judged_where_others_attack():
    task, attack = Classification(torch.nn.Linear(3, 2)), {"attack": "boosted", "attackers": 0.4}
    run = coterie.simulate(FedAvg(), draw(2), task, rounds=1, **attack)
    details = run.training.outcome.quality[""].details
    honest = int(run.evaluator.honest.among(torch.arange(6)).sum())
    assert sum(map(sum, details["confusion"])) == 8 * honest < 48
    assert run.metrics["log_loss"] == pytest.approx(run.metrics["loss"])
