import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from coterie.evaluation.ranking import (
    auc,
    auc_error,
    average_precision,
    precision_error,
    rank_samples,
)


def draw(seed):
    """Samples of four groups: their scores, some of them alike, and whether they are positive."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 80))
    score = np.round(rng.random(count), int(rng.integers(1, 4)))
    return rng.integers(0, 4, count), score, (rng.random(count) < 0.3).astype(float)


@pytest.mark.parametrize("seed", range(20))
def test_auc_and_average_precision_are_those_of_scikit_learn_with_ties(seed):
    group, score, positive = draw(seed)
    ranked = rank_samples(group, score, positive, 1 - positive, 4)
    for j in range(4):
        own, true = group == j, positive[group == j]
        if 0 < true.sum() < len(true):
            assert auc(ranked)[j] == pytest.approx(roc_auc_score(true, score[own]), abs=1e-12)
            expected = average_precision_score(true, score[own])
            assert average_precision(ranked)[j] == pytest.approx(expected, abs=1e-12)
        else:
            assert np.isnan(auc(ranked)[j])


@pytest.mark.parametrize("seed", range(20))
def test_what_bins_tell_is_not_farther_off_than_they_say(seed):
    group, score, positive = draw(seed)
    exact = rank_samples(group, score, positive, 1 - positive, 4)
    binned = rank_samples(group, np.floor(score * 4), positive, 1 - positive, 4)
    for measure, error in ((auc, auc_error), (average_precision, precision_error)):
        known = ~np.isnan(measure(exact))
        off = np.abs(measure(binned) - measure(exact))[known]
        assert (off <= error(binned)[known] + 1e-12).all()
        assert (error(exact)[known & (auc_error(exact) == 0)] <= 1).all()


def test_samples_that_are_counted_are_as_many_single_ones():
    scores, of = np.array([0.2, 0.7, 0.7]), np.zeros(3, dtype=np.int64)
    counted = rank_samples(of, scores, np.array([1.0, 3, 0]), np.array([4.0, 0, 2]), 1)
    each = np.repeat(scores, [5, 3, 2])
    true = np.array([1.0, 0, 0, 0, 0, 1, 1, 1, 0, 0])
    assert auc(counted)[0] == pytest.approx(roc_auc_score(true, each))
    assert average_precision(counted)[0] == pytest.approx(average_precision_score(true, each))


def test_nobody_has_no_rank():
    nobody = np.zeros(0)
    ranked = rank_samples(nobody.astype(int), nobody, nobody, nobody, 2)
    assert np.isnan(auc(ranked)).tolist() == [True, True]
