import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.tables.statistics import (
    category_counts,
    client_sums,
    column_moments,
    total_counts,
)


def test_a_client_says_the_count_sum_and_sum_of_squares_of_its_own_values():
    values = np.array([1.0, 2.0, 3.0, np.nan, 5.0])
    sums = client_sums(values, np.array([0, 2, 5]))
    assert sums.known.tolist() == [2, 2]
    assert sums.total.tolist() == [3, 8]
    assert sums.squares.tolist() == [5, 34]


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    centre=st.sampled_from([0.0, 1.0, -20_000.0, 1e9]),
    gaps=st.floats(0, 0.9),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_of_clients_give_the_statistics_of_pooled_rows(sizes, centre, gaps, seed):
    rng = np.random.default_rng(seed)
    values = centre + rng.normal(size=sum(sizes))
    values[rng.random(len(values)) < gaps] = np.nan
    values[0] = centre
    told = column_moments(values, np.array([0, *np.cumsum(sizes)]))
    assert told.known == np.isfinite(values).sum()
    assert told.mean == pytest.approx(np.nanmean(values), rel=1e-12, abs=1e-9)
    assert told.deviation == pytest.approx(np.nanstd(values), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7, 1 / 3, 1e30])
def test_a_constant_is_known_as_one_in_spite_of_rounding(value):
    assert column_moments(np.full(100_001, value), np.array([0, 7, 50_000, 100_001])).constant


def test_values_that_differ_in_the_last_digit_only_are_constant():
    assert column_moments(np.array([1.0, np.nextafter(1, 2)] * 5), np.array([0, 4, 10])).constant


def test_small_steps_far_from_zero_are_no_constant():
    assert not column_moments(1e9 + np.arange(10) * 0.01, np.array([0, 4, 10])).constant


def test_a_column_without_values_is_constant():
    assert column_moments(np.full(4, np.nan), np.array([0, 2, 4])).constant


def test_words_are_counted_by_client_and_added_up():
    counts = category_counts(np.array([2, 2, 0, -1, 2]), np.array([0, 3, 5]), 3)
    assert counts.toarray().tolist() == [[1, 0, 2, 0], [0, 0, 1, 1]]
    assert total_counts(counts).tolist() == [1, 0, 3, 1]
