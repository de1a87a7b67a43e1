import math
import warnings
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import nn

import coterie
from coterie import Classification
from coterie.checks import CLASSES, FEATURES, small_federation
from coterie.core.errors import DataError
from coterie.core.task import MetricSums, task_metrics
from coterie.tasks.network import NetworkTask


def test_classification_numbers_by_hand():
    task = Classification(nn.Linear(1, 2))
    # Client 0 has 3 samples, 2 right; client 1 has 1 sample, wrong; its second row is padding.
    guess = torch.tensor([[0, 1, 1], [0, 0, 0]])
    output = nn.functional.one_hot(guess, 2).float()
    y = torch.tensor([[0, 1, 0], [1, 0, 0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = task_metrics(task, task.score(output, y, mask))
    assert found.clients["accuracy"].tolist() == pytest.approx([2 / 3, 0.0])
    assert found.metrics["accuracy"] == pytest.approx(0.5)
    assert found.metrics["accuracy_macro"] == pytest.approx(1 / 3)
    # A right guess has logits 1 against 0 and loss log(1 + 1/e), a wrong one log(1 + e).
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    assert found.metrics["loss"] == pytest.approx((2 * right + 2 * wrong) / 4)


def test_f1_and_balanced_accuracy_are_those_of_scikit_learn_pooled_and_per_client():
    generator = torch.Generator().manual_seed(0)
    task = Classification(nn.Linear(1, 4))
    output = torch.randn(3, 20, 4, generator=generator)
    y = torch.randint(4, (3, 20), generator=generator)
    mask = torch.arange(20) < torch.tensor([[20], [7], [1]])
    found = task_metrics(task, task.score(output, y, mask))
    guess = output.argmax(-1)
    pooled = f1_score(y[mask], guess[mask], average="macro")
    each = [f1_score(y[i, m], guess[i, m], average="macro") for i, m in enumerate(mask)]
    assert found.metrics["f1"] == pytest.approx(pooled)
    assert found.clients["f1"].tolist() == pytest.approx(each)
    assert found.metrics["f1_macro"] == pytest.approx(sum(each) / 3)
    with warnings.catch_warnings():  # scikit-learn warns of classes that are only predicted
        warnings.simplefilter("ignore")
        pooled = balanced_accuracy_score(y[mask], guess[mask])
        each = [balanced_accuracy_score(y[i, m], guess[i, m]) for i, m in enumerate(mask)]
    assert found.metrics["balanced_accuracy"] == pytest.approx(pooled)
    assert found.clients["balanced_accuracy"].tolist() == pytest.approx(each)


@pytest.mark.parametrize(
    ("module", "x", "y", "sentence"),
    [
        (
            nn.Linear(3, 2),
            torch.zeros(4, 3),
            torch.tensor([0, 1, 2, 0]),
            "2 outputs, so labels must lie in 0 to 1, got 2",
        ),
        (nn.Linear(3, 2), torch.zeros(2, 3), torch.tensor([0, -1]), "got -1"),
        (
            nn.Linear(5, 2),
            torch.zeros(2, 3),
            torch.tensor([0, 1]),
            r"Linear cannot take samples of shape \[3\]",
        ),
        (
            nn.Linear(3, 2),
            torch.zeros(2, 3),
            torch.tensor([0.5, 1.0]),
            "labels must be whole numbers",
        ),
        (
            nn.Linear(3, 2),
            torch.zeros(2, 4, 3),
            torch.tensor([0, 1]),
            "one row of outputs per sample",
        ),
    ],
)
def test_a_network_that_does_not_fit_the_labels_is_refused(module, x, y, sentence):
    with pytest.raises(DataError, match=sentence):
        Classification(module).check_samples(x, y)


def test_a_network_with_two_outputs_is_refused_in_a_sentence():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(DataError, match="one row of outputs per sample, got tuple"):
        Classification(Pair(3, 2)).check_samples(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_clients_that_come_in_parts_and_in_any_order_are_tallied_as_all_at_once():
    task = Classification(nn.Linear(1, 3))
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(50, 4, 3, generator=generator)
    y = torch.randint(3, (50, 4), generator=generator)
    scores = task.score(output, y, torch.ones_like(y, dtype=torch.bool))
    whole, sums = task_metrics(task, scores), MetricSums(task, 50)
    for places in torch.randperm(50, generator=generator).split(7):
        sums.add(places, scores[places])
    parts = sums.finish()
    assert parts.metrics == pytest.approx(whole.metrics)
    names = ["accuracy", "balanced_accuracy", "f1"]
    names = [*names, "loss", *(f"{name}_macro" for name in names), "f1_micro"]
    assert list(parts.metrics) == names
    for name, values in whole.clients.items():
        assert values.equal(parts.clients[name])
    alone = task_metrics(task, scores[3:4])
    assert alone.metrics["f1"] == float(whole.clients["f1"][3])


def soft_federation(hard, classes=3):
    data = small_federation()

    def soften(part):
        return replace(part, y=nn.functional.one_hot(part.y, classes).double())

    return data if hard else replace(data, train=soften(data.train), test=soften(data.test))


def test_one_hot_soft_targets_are_hard_ones():
    def network():
        return nn.Linear(FEATURES, CLASSES).double()

    runs = [
        coterie.simulate(
            coterie.IFCA(k=2, lr=0.3, steps=2, batch=4),
            soft_federation(hard, CLASSES),
            Classification(network),
            rounds=3,
        )
        for hard in (True, False)
    ]
    torch.testing.assert_close(runs[0].models, runs[1].models, rtol=0, atol=1e-12)
    assert runs[0].metrics == pytest.approx(runs[1].metrics)
    assert torch.equal(runs[0].clusters, runs[1].clusters)


def test_soft_targets_weigh_all_classes():
    task = Classification(nn.Linear(2, 2))
    output = torch.log(torch.tensor([[0.75, 0.25], [0.75, 0.25]]))
    target = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    expected = [
        -(math.log(0.75) + math.log(0.25)) / 2,
        -0.1 * math.log(0.75) - 0.9 * math.log(0.25),
    ]
    assert task.losses(output, target).tolist() == pytest.approx(expected)
    found = task.metrics(task.score(output[None], target[None], torch.ones(1, 2)))
    assert float(found["accuracy"]) == 0.5  # the first is a draw, which the first class wins


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([0.5, 0.5], "has 3 outputs, so soft targets must be 3 probabilities per sample, got 2"),
        ([0.5, 0.5, 0.5], "at least 0 and 1 in sum, got a sum of 1.5"),
        ([-0.5, 0.5, 1.0], "at least 0 and 1 in sum, got -0.5"),
    ],
)
def test_soft_targets_must_be_probabilities(row, sentence):
    task = Classification(nn.Linear(2, 3))
    with pytest.raises(DataError, match=sentence):
        task.check_samples(torch.zeros(4, 2), torch.tensor([row] * 4))


def test_micro_f1_is_the_mean_of_the_clients_own_weighted_by_samples():
    # Two classes. Client 0, one sample: predicted 0, is 0: F1 1. Client 1, three samples 0, 0, 1,
    # all predicted 0: F1 of class 0 is 4 / 5, of class 1 is 0, so 2 / 5.
    task = Classification(torch.nn.Linear(1, 2))
    output = torch.tensor([1.0, 0.0]).expand(2, 3, 2)
    y = torch.tensor([[0, 0, 0], [0, 0, 1]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    found = task_metrics(task, task.score(output, y, mask)).metrics
    assert found["f1_macro"] == pytest.approx((1 + 2 / 5) / 2)
    assert found["f1_micro"] == pytest.approx((1 * 1 + 3 * 2 / 5) / 4)
    # All four samples pooled: of class 0 three of four predictions are right, 6 / 7 and 0.
    assert found["f1"] == pytest.approx((6 / 7 + 0) / 2)


def test_weights_of_classes_count_in_training_and_not_in_measures():
    plain = Classification(nn.Linear(2, 3))
    task = plain.with_class_weight(torch.tensor([1.0, 2.0, 0.5]))
    output = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    y = torch.tensor([[1, 2, 0]])
    expected = nn.functional.cross_entropy(
        output[0], y[0], weight=torch.tensor([1.0, 2.0, 0.5]), reduction="none"
    )
    torch.testing.assert_close(task.losses(output, y)[0], expected)
    soft = nn.functional.one_hot(y, 3).float()
    torch.testing.assert_close(task.losses(output, soft)[0], expected)
    mask = torch.ones(1, 3)
    assert torch.equal(task.score(output, y, mask), plain.score(output, y, mask))
    slow = NetworkTask.output_gradients(task, output.mT, y)
    torch.testing.assert_close(task.output_gradients(output.mT, y), slow)
