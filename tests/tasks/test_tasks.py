import math

import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from coterie import Classification, Regression
from coterie.core.errors import DataError, SettingError
from coterie.core.task import MetricSums, task_metrics


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


def test_f1_is_that_of_scikit_learn_pooled_and_per_client():
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


def test_loss_is_the_mean_over_samples_that_count():
    task = Regression(nn.Linear(1, 1))
    output = torch.tensor([[[1.0], [2.0]], [[3.0], [50.0]]])
    y = torch.zeros(2, 2)
    mask = torch.tensor([[True, True], [True, False]])
    found = task_metrics(task, task.score(output, y, mask))
    assert found.clients["loss"].tolist() == [2.5, 9.0]
    assert found.metrics == {"loss": pytest.approx(14 / 3)}


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


def test_regression_needs_one_output():
    with pytest.raises(DataError, match="network of one output"):
        Regression(nn.Linear(3, 2)).check_samples(torch.zeros(2, 3), torch.zeros(2))


def test_draws_are_pytorchs_own_initialisation_and_depend_on_the_generator_only():
    task = Classification(nn.Linear(3, 2))
    torch.manual_seed(5)
    one = task.draw(torch.Generator().manual_seed(1))
    torch.manual_seed(6)
    again = task.draw(torch.Generator().manual_seed(1))
    other = task.draw(torch.Generator().manual_seed(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.abs().max() <= 3**-0.5


def test_features_are_cast_to_the_networks_type_except_for_embeddings():
    assert Classification(nn.Linear(2, 2)).inputs(torch.zeros(1, 2).byte()).dtype == torch.float32
    words = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    assert Classification(words).inputs(torch.zeros(1, 2).long()).dtype == torch.long


def test_frozen_layers_keep_the_weights_they_came_with():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.eye_(module[0].weight)
    module[0].requires_grad_(False)
    task = Classification(module)
    for seed in (1, 2):
        draw = task.layout.unflatten(task.draw(torch.Generator().manual_seed(seed)))
        assert torch.equal(draw["0.weight"], torch.eye(3))
        assert not torch.equal(draw["2.weight"], module[2].weight)


@pytest.mark.parametrize("network", ["mlp", None, lambda: 3])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(SettingError, match=r"torch\.nn\.Module"):
        Classification(network)


def test_a_network_with_two_outputs_is_refused_in_a_sentence():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(DataError, match="one row of outputs per sample, got tuple"):
        Classification(Pair(3, 2)).check_samples(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.float64])
def test_samples_are_scaled_and_stay_as_they_are(kind):
    task = Regression(nn.Linear(2, 1), scale=4.0)
    x = torch.tensor([[0, 1], [2, 200]], dtype=kind)
    scaled = task.inputs(x)
    assert scaled.dtype == torch.float32
    assert scaled.tolist() == [[0.0, 0.25], [0.5, 50.0]]
    assert x.tolist() == [[0, 1], [2, 200]]


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
    assert list(parts.metrics) == ["accuracy", "f1", "loss", "accuracy_macro", "f1_macro"]
    for name, values in whole.clients.items():
        assert values.equal(parts.clients[name])
    alone = task_metrics(task, scores[3:4])
    assert alone.metrics["f1"] == float(whole.clients["f1"][3])
