"""Tests of significance, worked out by hand.

With two degrees of freedom the two-sided p-value of t is 1 - |t| / sqrt(2 + t^2), with one it is
1 - 2 atan(|t|) / pi.
"""

from math import atan, pi, sqrt

import pytest
from scipy import stats

from coterie.evaluation.significance import (
    Repeat,
    has_splits,
    holm,
    independent_gaps,
    repeats_text,
    resampled_t_test,
)


def test_overlapping_splits_widen_the_variance():
    # Mean 3, variance 1, J = 3, a fifth of the samples tested on: 1 / 4 for each one of training.
    # t = 3 / sqrt((1/3 + 1/4) 1) = 3 / sqrt(7/12) = 3.9279; without overlap 3 / sqrt(1/3) = 5.1962.
    t = 3 / sqrt(7 / 12)
    assert resampled_t_test([2.0, 4.0, 3.0], 0.25) == pytest.approx(1 - t / sqrt(2 + t * t))
    t = 3 * sqrt(3)
    assert resampled_t_test([2.0, 4.0, 3.0], 0.0) == pytest.approx(1 - t / sqrt(2 + t * t))
    # Two splits in halves: mean 2, variance 2, t = 2 / sqrt((1/2 + 1) 2) = 2 / sqrt(3).
    assert resampled_t_test([1.0, 3.0], 1.0) == pytest.approx(1 - 2 * atan(2 / sqrt(3)) / pi)


def test_without_overlap_it_is_the_paired_t_test():
    one, two = [0.81, 0.79, 0.84, 0.8], [0.8, 0.81, 0.79, 0.77]
    gaps = [a - b for a, b in zip(one, two, strict=True)]
    assert resampled_t_test(gaps, 0.0) == pytest.approx(stats.ttest_rel(one, two).pvalue)


def test_an_unknown_overlap_or_equal_differences_have_no_test():
    assert resampled_t_test([1.0, 2.0], None) is None
    assert resampled_t_test([2.0, 2.0], 0.25) is None
    assert resampled_t_test([2.0], 0.25) is None
    assert resampled_t_test([], 0.0) is None


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    # 0.01 x 4, 0.02 x 3, 0.03 x 2 would be 0.04, 0.06, 0.06; 0.9 x 1.
    assert holm([0.9, 0.01, 0.03, 0.02]) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    # 0.04 x 2 = 0.08 for the second would be above that of the third, 0.05 x 1: it stays 0.08.
    assert holm([0.04, 0.001, 0.05]) == pytest.approx([0.08, 0.003, 0.08])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.03]) == [0.03]


def test_starts_on_one_split_are_one_difference():
    gaps = {Repeat(0, 0): 1.0, Repeat(0, 1): 2.0, Repeat(1, 0): 3.0, Repeat(1, 1): 6.0}
    assert independent_gaps(gaps) == [1.5, 4.5]
    assert has_splits(gaps)
    assert independent_gaps({Repeat(0, 0): 1.0, Repeat(0, 1): 2.0}) == [1.0, 2.0]
    assert independent_gaps({0: 1.0, 1: 2.0}) == [1.0, 2.0]
    assert not has_splits([0, 1])


@pytest.mark.parametrize(
    ("repeats", "text"),
    [
        ([Repeat(0, 0)], "one run each"),
        ([Repeat(3, 0), Repeat(3, 1)], "2 starts on one split of the data (split_seed=3)"),
        ([Repeat(0, 0), Repeat(1, 0)], "2 splits of the data, one start on each (seed=0)"),
        ([Repeat(0, 0), Repeat(1, 1)], "2 seeds, of the data and of the start alike"),
        (
            [Repeat(i, j) for i in range(2) for j in range(3)],
            "2 splits of the data, 3 starts on each",
        ),
        ([Repeat(None, 0), Repeat(None, 1)], "2 starts on the same data"),
    ],
)
def test_what_varies_is_told_in_words(repeats, text):
    assert repeats_text(repeats) == text
