"""An algorithm's own metrics."""

import pytest
import torch

import coterie
from coterie import FedAvg
from coterie.core.algorithm import Info
from coterie.core.errors import CoterieError
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
