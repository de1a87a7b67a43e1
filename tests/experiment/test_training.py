"""An algorithm's own metrics."""

import pytest
import torch

import coterie
from coterie import FedAvg
from coterie.core.algorithm import Info
from coterie.core.errors import CoterieError
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings


class Names(FedAvg):
    """Gives its metric any name and value."""

    def __init__(self, name, value):
        super().__init__()
        object.__setattr__(self, "metric", {name: value})

    def round(self, state, clients):
        after, info = super().round(state, clients)
        return after, Info(*info[:3], self.metric)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("accuracy", 1.0, "Names must give its metric accuracy another name"),
        ("train_loss", 1.0, "Names must give its metric train_loss another name"),
        ("mine", "much", "metric mine of Names must be a number, got 'much'"),
        ("mine", torch.ones(2), "metric mine of Names must be a number"),
    ],
)
def test_a_metric_with_a_fixed_name_or_no_number_is_refused(name, value, sentence):
    federation, task = coterie.load("rotated-digits", clients=4)
    with pytest.raises(CoterieError, match=sentence):
        coterie.simulate(Names(name, value), federation, task, rounds=1)


def test_the_last_metrics_are_there_after_a_run_was_resumed(tmp_path):
    federation, task = coterie.load("rotated-digits", clients=4)
    settings = {"folder": tmp_path / "run", "rounds": 2}
    run = coterie.simulate(Names("mine", 3), federation, task, **settings)
    again = coterie.Run(Names("mine", 3), federation, task, RunSettings(rounds=2))
    again.use(tmp_path / "run", resume=True)
    assert again.complete().metrics == run.metrics
    assert again.metrics["mine"] == 3.0


UIFCA = ["uifca", "gaussian-clusters", "samples=40", "rounds=2", "restarts=1", "steps=1"]


def counted(words):
    plan = make_plan(words)
    return plan.run(plan.config()).complete().records


def test_clusters_of_samples_are_counted_in_samples():
    for record in counted([*UIFCA, "evaluate=2"]):  # also where a round is not evaluated
        assert record["counted"] == "samples"
        assert sum(record["sizes"]) == 4 * 40
    (record,) = counted(["k-fed", "gaussian-clusters", "samples=40"])
    assert (record["counted"], sum(record["sizes"])) == ("samples", 4 * 40)


@pytest.mark.parametrize(
    "words", [["ifca", "k=2"], ["ifca", "k=2", "withhold=clusters"], ["fedavg"]]
)
def test_clusters_of_clients_are_counted_in_clients(words):
    name, *settings = words
    for record in counted([name, "rotated-digits", "clients=8", "rounds=2", *settings]):
        assert (record["counted"], sum(record["sizes"])) == ("clients", 8)


class Weighs(FedAvg):
    """Knows the weights of two clusters, in a unit of its own, and where nobody is."""

    def round(self, state, clients):
        after, info = super().round(state, clients)
        return after, Info(info.ids, None, 2, weights=torch.tensor([0.03, 0.01]))


def test_shares_of_clients_are_counted_in_clients():
    federation, task = coterie.load("rotated-digits", clients=8)
    run = coterie.simulate(Weighs(), federation, task, rounds=1)
    assert (run.records[0]["counted"], run.records[0]["sizes"]) == ("clients", [6, 2])
