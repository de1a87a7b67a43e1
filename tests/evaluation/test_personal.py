import pytest
import torch

from coterie.core.algorithm import Serving
from coterie.core.errors import SettingError
from coterie.core.task import TaskMetrics
from coterie.evaluation.personal import (
    FineTuning,
    PersonalModels,
    TunedScores,
    check_tunable,
    choose_personal,
)
from coterie.tasks.network import NetworkTask

RULE = FineTuning(1, 0.1, outliers_only=True, distance=2.0)
# Samples and summed loss of three clients, before and after.
BEFORE = torch.tensor([[2.0, 8.0], [4.0, 4.0], [1.0, 5.0]], dtype=torch.float64)
AFTER = torch.tensor([[2.0, 2.0], [4.0, 12.0], [1.0, 1.0]], dtype=torch.float64)


class Losses(NetworkTask):
    """A task of nothing but losses."""

    def losses(self, output, y):
        return output.squeeze(-1) - y


def served():
    return Serving(torch.zeros(1, 2), torch.arange(3), torch.zeros(3, dtype=torch.long))


def chosen(moved, rule):
    scores = TunedScores(BEFORE, AFTER, torch.tensor(moved, dtype=torch.float64)[:, None])
    task = Losses(torch.nn.Linear(1, 1))
    return choose_personal(task, served(), scores, rule.threshold(scores.moved))


def test_only_those_who_moved_far_use_their_own_model():
    found = chosen([1.0, 1.5, 4.0], RULE)
    assert found.threshold == 3.0  # twice the median, 1.5
    assert found.uses_own.tolist() == [False, False, True]
    # (8 + 4 + 1) / 7 where the third uses its own, (8 + 4 + 5) / 7 before
    assert found.summary.metrics["loss"] == pytest.approx(13 / 7)
    assert found.before.metrics["loss"] == pytest.approx(17 / 7)
    assert found.metrics() == {"tuned": pytest.approx(1 / 3), "tuned_distance": 3.0}


def test_who_is_at_the_threshold_keeps_the_shared_model():
    assert chosen([1.0, 1.5, 3.0], RULE).uses_own.tolist() == [False] * 3


def test_without_a_rule_all_use_their_own():
    found = chosen([1.0, 1.5, 4.0], FineTuning(1, 0.1))
    assert found.threshold is None
    assert found.summary.metrics["loss"] == pytest.approx(15 / 7)
    assert found.metrics() == {"tuned": 1.0}


def test_a_model_that_diverged_is_no_ones_own_and_no_part_of_the_median():
    found = chosen([1.0, torch.nan, torch.inf], RULE)
    assert found.threshold == 2.0
    assert not found.uses_own.any()
    assert chosen([torch.nan] * 3, RULE).threshold == 0.0


def test_half_of_the_clients_must_be_outliers_to_hide_one():
    moved = torch.tensor([1.0] * 5 + [100.0] * 4)[:, None]
    assert RULE.threshold(moved) == 2.0


def test_nobody_who_was_scored_has_no_share():
    nobody = served().for_clients(torch.zeros(3, dtype=torch.bool))
    assert PersonalModels(nobody, TaskMetrics({}, {})).metrics() == {}


def test_samples_and_mixtures_are_not_fine_tuned():
    with pytest.raises(SettingError, match="serves samples, not clients"):
        check_tunable(served()._replace(label=lambda cohort, models: None), "Mine")
    with pytest.raises(SettingError, match="serves mixtures of models"):
        check_tunable(served()._replace(mixture=torch.ones(3, 1)), "Mine")
