"""Clients that are served a mixture of models, and what their scores add up to."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie
from coterie import Classification, FedAvg, Federation, Regression, checks
from coterie.core.algorithm import Serving, serve_clients
from coterie.core.errors import CoterieError
from coterie.core.task import TaskMetrics, task_metrics
from coterie.engine.simulator import Simulator
from coterie.evaluation.metrics import OF_PROBABILITIES
from coterie.evaluation.scoring import (
    Evaluation,
    SimulatedScorer,
    cluster_summary,
    summed_evaluation,
)
from coterie.evaluation.sums import SummedScores, sum_scores
from tests.evaluation.fedem import FedEM
from tests.tasks.taggers import tagging_federation, tagging_task


def served(task, clients, models, shares):
    """The evaluation of a serving on the training part."""
    federation = Federation.from_clients(clients)
    scorer = SimulatedScorer(federation, Simulator(federation.train, task))
    shares = torch.tensor(shares)
    serving = Serving(torch.tensor(models), torch.arange(len(shares)), shares.argmax(1))
    return scorer.score(serving._replace(mixture=shares), "train").summary


def test_a_mixture_of_regressions_predicts_the_mean_by_hand():
    # Two models w = 1 and w = 5 at x = 1; with shares (3/4, 1/4) client 0 predicts 2, y is 4; with
    # (0, 1) client 1 predicts 5, y is 5.
    ones = torch.ones(2, 1)
    clients = [(ones, torch.full((2,), 4.0)), (ones[:1], torch.tensor([5.0]))]
    task = Regression(nn.Linear(1, 1, bias=False))
    found = served(task, clients, [[1.0], [5.0]], [[0.75, 0.25], [0.0, 1.0]])
    assert found.clients["loss"].tolist() == [4.0, 0.0]


def test_a_client_without_validation_samples_is_left_out_by_hand():
    # Under w = 1 client 0 errs by 2, client 2 by 1 on both of its samples.
    ones = torch.ones(1, 1)
    held = [(ones, torch.tensor([3.0])), None, (torch.ones(2, 1), torch.tensor([0.0, 2.0]))]
    federation = Federation.from_clients([(ones, torch.ones(1))] * 3, validation=held)
    task = Regression(nn.Linear(1, 1, bias=False))
    scorer = SimulatedScorer(federation, Simulator(federation.train, task))
    serving = Serving(torch.ones(1, 1), torch.arange(3), torch.zeros(3, dtype=torch.long))
    found = scorer.score(serving, "validation")
    assert found.serving.ids.tolist() == [0, 2]
    assert found.summary.clients["loss"].tolist() == [4.0, 1.0]
    assert found.summary.metrics["loss"] == 2.0


@pytest.mark.parametrize("algorithm", [coterie.IFCA(k=2), coterie.Local(), FedAvg()], ids=str)
@pytest.mark.parametrize("protocol", ["train-loss", "test-loss"])
def test_what_is_held_out_changes_nothing_but_its_own_metrics(algorithm, protocol):
    data, task = checks.small_federation(), checks.small_task()
    other = checks.small_federation([4] * len(data)).train
    settings = {"rounds": 2, "protocol": protocol}
    plain = coterie.simulate(algorithm, data, task, **settings)
    held = coterie.simulate(algorithm, replace(data, validation=other), task, **settings)
    own = {name: value for name, value in held.metrics.items() if "validation_" in name}
    assert held.metrics == plain.metrics | own
    # Whatever the protocol, by training data clients have chosen the models for this.
    serving = held.evaluator.serve(held.state)
    expected = held.evaluator.scorer.score(serving, "validation").summary.metrics
    expected = {f"validation_{name}": value for name, value in expected.items()}
    assert expected.items() <= own.items()
    added = {f"validation_{name}" for name in OF_PROBABILITIES}
    assert set(own) == set(expected) | added


def test_a_mixture_of_classifiers_mixes_probabilities_by_hand():
    # No features but a constant: logits are the weights. Probabilities of class 0 are 1/2 and 3/4
    # (log 3 against 0); with shares (1/5, 4/5) their mean is 0.7. Means of logits would give
    # sigmoid(0.8 log 3) = 0.707.
    x, y = torch.ones(3, 1), torch.tensor([0, 0, 1])
    task = Classification(nn.Linear(1, 2, bias=False))
    models = [[0.0, 0.0], [math.log(3), 0.0]]
    found = served(task, [(x, y)], models, [[0.2, 0.8]])
    assert found.clients["loss"].item() == pytest.approx(-(2 * math.log(0.7) + math.log(0.3)) / 3)
    assert found.clients["accuracy"].item() == pytest.approx(2 / 3)


def test_a_share_of_one_is_the_model_alone():
    federation, task = coterie.load("rotated-digits", clients=4)
    generator = torch.Generator()
    models = torch.stack([task.draw(generator.manual_seed(seed)) for seed in range(3)])
    scorer = SimulatedScorer(federation, Simulator(federation.train, task))
    cluster = torch.tensor([2, 0, 1, 1])
    alone = Serving(models, torch.arange(4), cluster)
    mixed = alone._replace(mixture=nn.functional.one_hot(cluster, 3).float())
    one, two = (scorer.score(each, "test").summary for each in (alone, mixed))
    assert one.metrics == pytest.approx(two.metrics, rel=1e-5)


class Broken(FedAvg):
    """Serves what is asked of it."""

    def __init__(self, **serving):
        super().__init__()
        object.__setattr__(self, "serving", serving)

    def serve(self, state, clients):
        return Serving(torch.zeros(2, clients.task.layout.size), clients.ids, None, **self.serving)


@pytest.mark.parametrize(
    ("serving", "sentence"),
    [
        ({"mixture": torch.ones(3, 2) / 2}, r"must be \[4, 2\], .* got \[3, 2\]"),
        ({"mixture": torch.ones(4, 3) / 3}, r"must be \[4, 2\], .* got \[4, 3\]"),
        ({"mixture": torch.ones(4, 2)}, "at least 0 and sum to 1"),
        ({"mixture": torch.tensor([[2.0, -1.0]] * 4)}, "at least 0 and sum to 1"),
        ({"mixture": torch.ones(4, 2) / 2, "adapt": lambda: None}, "not both"),
    ],
)
def test_shares_that_are_none_are_refused_in_a_sentence(serving, sentence):
    federation, task = coterie.load("rotated-digits", clients=4)
    clients = Simulator(federation.train, task).at("serve")
    with pytest.raises(CoterieError, match=sentence):
        serve_clients(Broken(**serving), None, clients)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A run of FedEM, and its folder."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    data = checks.small_federation()
    algorithm = FedEM(k=2, lr=0.5, steps=5)
    settings = {"rounds": 6, "evaluate": 3, "folder": folder}
    return coterie.simulate(algorithm, data, checks.small_task(), **settings), folder


def test_a_method_whose_clients_mix_models_is_scored_and_reported(mixed):
    run, folder = mixed
    assert run.serving.mixture.shape == (8, 2)
    assert torch.equal(run.clusters, run.serving.mixture.argmax(1))
    assert run.models.shape[0] == 2
    table = json.loads((folder / "clients.json").read_text())
    assert torch.tensor(table["clients"]["shares"]).shape == (8, 2)
    assert table["clients"]["cluster"] == run.clusters.tolist()
    assert (folder / "report.html").stat().st_size > 1000
    assert run.serve(checks.small_federation([4, 5])).shape == (2,)
    # The mixture of two models is better than each of them alone.
    data, scorer = run.federation, run.evaluator.scorer
    losses = [scorer.score(run.serving, "train").summary.metrics["loss"]]
    for cluster in (0, 1):
        same = torch.full((len(data),), cluster)
        serving = run.serving._replace(cluster=same, mixture=None)
        losses.append(scorer.score(serving, "train").summary.metrics["loss"])
    assert losses[0] < min(losses[1:])


def test_every_round_has_the_metrics_of_the_algorithm(mixed):
    run, folder = mixed
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert all(line["metrics"]["heard"] == 8.0 for line in lines)
    assert ["loss" in line["metrics"] for line in lines] == [False, False, True] * 2
    assert run.metrics["entropy"] == lines[-1]["metrics"]["entropy"]
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"]["heard"] == 8.0
    page = (folder / "report.html").read_text()
    assert "entropy over the rounds" in page


def test_a_mixture_is_scored_alike_in_copies_of_a_run():
    data, task = checks.small_federation(), checks.small_task()
    one = coterie.simulate(FedEM(k=2, steps=2), data, task, rounds=2)
    two = coterie.simulate(FedEM(k=2), data, task, rounds=2, grid={"steps": [2, 1]}, starts=1)
    assert {n: two.result["copies"][0][n] for n in ("steps", "start")} == {"steps": 2, "start": 0}
    assert two.result["copies"][0]["metrics"] == pytest.approx(one.metrics)


def test_models_of_sequences_can_be_mixed():
    federation, task = tagging_federation([3, 5, 4]), tagging_task()
    run = coterie.simulate(FedEM(k=2, steps=2, lr=0.5), federation, task, rounds=2)
    assert run.serving.mixture.shape == (len(federation), 2)
    assert math.isfinite(run.metrics["loss"])


def test_an_infinite_loss_is_that_of_its_own_cluster_only():
    serving = Serving(torch.zeros(3, 1), torch.arange(4), torch.tensor([0, 1, 1, 0]))
    clients = {"loss": torch.tensor([1.0, torch.inf, 2.0, 3.0])}
    sizes, means = cluster_summary(Evaluation(serving, TaskMetrics({}, clients)))
    assert sizes.tolist() == [2, 2, 0]
    assert means["loss"].tolist() == [2.0, torch.inf, 0.0]


@pytest.mark.parametrize("cuts", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_sums_over_clients_are_worth_what_they_are_worth_one_by_one(cuts):
    task, generator = checks.small_task(), torch.Generator().manual_seed(0)
    scores = torch.rand(5, 2 + 3 * 3, generator=generator, dtype=torch.float64) + 0.5
    cluster = torch.tensor([2, 0, 0, 2, 0])
    serving = Serving(torch.zeros(3, 1), torch.arange(5), cluster)
    alone = Evaluation(serving, task_metrics(task, scores))
    parts = [
        sum_scores(task, own, where, 3)
        for own, where in zip(scores.split(cuts), cluster.split(cuts), strict=True)
    ]
    whole = SummedScores(*map(sum, zip(*parts, strict=True)))
    found = summed_evaluation(task, serving, whole)
    known = dict(alone.summary.metrics)
    known.pop("f1_micro")  # takes the F1 and the size of each client
    assert found.summary.metrics == pytest.approx(known)
    assert found.summary.clients == {}
    expected = cluster_summary(alone)
    assert found.groups.sizes.tolist() == expected.sizes.tolist() == [3, 0, 2]
    for name, means in expected.means.items():
        torch.testing.assert_close(found.groups.means[name], means)
