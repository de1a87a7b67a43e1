import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    log_loss,
    roc_auc_score,
)

from coterie.evaluation.probabilities import (
    calibration_error,
    constant_sums,
    probability_metrics,
    rank_groups,
    rank_histogram,
    ranked_classes,
    sum_bins,
    sum_probabilities,
)


def draw(classes, seed=0, count=300, absent=None):
    """Logits of some samples, with ties, their labels, and how many each client has."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator).mul(4).round().div(2)
    labels = (logits + torch.randn(count, classes, generator=generator)).argmax(1)
    if absent is not None:
        labels[labels == absent] = 0
    return logits, labels, torch.tensor([1, 99, 150, count - 250])


def measured(logits, labels, sizes):
    """Their metrics, exact, and what they add up to."""
    log_p = logits.double().log_softmax(1)
    sums = sum_probabilities(log_p.exp(), log_p, labels, sizes)
    scores, positive = ranked_classes(log_p.exp(), labels)
    ranks = rank_groups(scores, positive, torch.zeros(len(labels), dtype=torch.long), 1)
    return probability_metrics(sums, ranks), sums, log_p.exp()


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_are_judged_as_scikit_learn_does(seed):
    logits, labels, sizes = draw(2, seed)
    found, sums, p = measured(logits, labels, sizes)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, p[:, 1]), abs=1e-9)
    expected = average_precision_score(labels, p[:, 1])
    assert found["average_precision"] == pytest.approx(expected, abs=1e-9)
    assert found["log_loss"] == pytest.approx(log_loss(labels, p), abs=1e-9)
    assert sums.confusion.tolist() == confusion_matrix(labels, p.argmax(1)).tolist()
    clients = zip(labels.split(sizes.tolist()), p[:, 1].split(sizes.tolist()), strict=True)
    each = [roc_auc_score(y, score) for y, score in clients if len(y) > 1]
    assert found["auc_macro"] == pytest.approx(np.mean(each), abs=1e-9)
    assert int(sums.by_client[0, 1]) == 3  # the client of one sample has one class only


@pytest.mark.parametrize("absent", [None, 2])
def test_several_classes_are_judged_one_against_the_others(absent):
    logits, labels, sizes = draw(4, absent=absent)
    found, _, p = measured(logits, labels, sizes)
    occurring = [j for j in range(4) if j != absent]
    expected = np.mean([roc_auc_score(labels == j, p[:, j]) for j in occurring])
    assert found["auc"] == pytest.approx(expected, abs=1e-9)
    if absent is None:
        whole = roc_auc_score(labels, p, multi_class="ovr")
        assert found["auc"] == pytest.approx(whole, abs=1e-9)
    expected = np.mean([average_precision_score(labels == j, p[:, j]) for j in occurring])
    assert found["average_precision"] == pytest.approx(expected, abs=1e-9)
    assert found["log_loss"] == pytest.approx(log_loss(labels, p, labels=range(4)), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_histograms_say_how_far_they_are_off(classes):
    logits, labels, sizes = draw(classes, 1, 2000)
    logits = logits + 0.3 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    exact, sums, _ = measured(logits, labels, sizes)
    ranks, error = rank_histogram(sums)
    for name, value in ranks._asdict().items():
        off = abs(float(value) - exact[name])
        assert 0 < off <= float(getattr(error, name)) < 0.01


def test_parts_add_up():
    logits, labels, sizes = draw(3)
    _, whole, _ = measured(logits, labels, sizes)
    cut = [(logits[:100], labels[:100], sizes[:2]), (logits[100:], labels[100:], sizes[2:])]
    one, two = (measured(*each)[1] for each in cut)
    for name, value in one.plus(two)._asdict().items():
        torch.testing.assert_close(value, getattr(whole, name), msg=name)


def test_of_one_class_alone_nothing_can_be_ranked():
    logits, _, sizes = draw(2)
    found, sums, _ = measured(logits, torch.zeros(300, dtype=torch.long), sizes)
    assert set(found) == {"log_loss", "ece"}
    assert rank_histogram(sums)[0].auc.isnan().all()


def test_calibration_by_hand():
    # Three samples of confidence 0.95, two of them right, and one of 0.55 that is right.
    p, right = torch.tensor([0.95, 0.95, 0.55, 0.95]), torch.tensor([True, False, True, True])
    bins = sum_bins(p.double(), right, 10)
    assert bins[9].tolist() == pytest.approx([3, 2.85, 2])
    assert bins[5].tolist() == pytest.approx([1, 0.55, 1])
    assert calibration_error(bins) == pytest.approx((0.85 + 0.45) / 4)


def test_the_edges_of_bins_are_in_them():
    bins = sum_bins(torch.tensor([0.0, 1.0]), torch.tensor([False, True]), 10)
    assert bins[:, 0].tolist() == [1, *[0] * 8, 1]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_constant_is_what_it_is_where_it_is_predicted(classes):
    logits, labels, sizes = draw(classes)
    constant = torch.randn(classes, generator=torch.Generator().manual_seed(1))
    _, known, _ = measured(logits, labels, sizes)
    found = constant_sums(known, constant)
    expected, sums, _ = measured(constant.expand_as(logits), labels, sizes)
    for name in ("histogram", "confusion", "confidence", "curve", "log_loss"):
        torch.testing.assert_close(getattr(found, name), getattr(sums, name), msg=name)
    del expected["average_precision_macro"]  # not told by sums
    assert probability_metrics(found, rank_histogram(found)[0]) == pytest.approx(expected)
    assert expected["auc"] == expected["auc_macro"] == 0.5
