"""Who is late, for how long a node is waited for, and when it is asked again."""

import pytest

from coterie.flower.punctuality import (
    AGAIN_SECONDS,
    FAIR_SECONDS,
    FIRST_SECONDS,
    LAST,
    MOST_RESTS,
    Answer,
    Punctuality,
)


def test_a_node_has_a_few_times_what_it_took_before_for_the_same_step():
    punctuality = Punctuality()
    for seconds in (10.0, 60.0, 20.0):
        punctuality.answered(1, "train", seconds)
    quick = [Answer(1.0, 100)]
    assert punctuality.fair_seconds(1, "train", 100, quick) == 90.0  # 1.5 times the longest
    for _ in range(5):
        punctuality.answered(1, "train", 25.0)
    assert punctuality.fair_seconds(1, "train", 100, quick) == 100.0  # 4 times the median
    punctuality.lapse(1)
    assert punctuality.fair_seconds(1, "train", 100, quick) == 37.5  # it was late the last time
    assert punctuality.fair_seconds(1, "score", 100, quick) == FIRST_SECONDS  # another step
    assert punctuality.fair_seconds(2, "train", 100, quick) == FIRST_SECONDS  # another node
    for _ in range(LAST):
        punctuality.answered(1, "train", 0.1)
    assert punctuality.fair_seconds(1, "train", 100, quick) == FAIR_SECONDS
    punctuality.lapse(1)
    assert punctuality.fair_seconds(1, "train", 100, quick) == AGAIN_SECONDS


def test_a_node_without_a_past_is_judged_by_others_and_their_samples():
    others = [Answer(6.0, 100), Answer(2.0, 10)]
    assert Punctuality().fair_seconds(1, "train", 100, others) == pytest.approx(200.0)
    assert Punctuality().fair_seconds(1, "train", 10, others) == pytest.approx(60.0)
    assert Punctuality().fair_seconds(1, "train", 100, []) == FIRST_SECONDS


def test_who_is_late_again_and_again_is_left_out_of_more_and_more_exchanges():
    punctuality, found = Punctuality(), []
    for _ in range(7):
        found.append(punctuality.lapse(1))
        for _ in range(found[-1]):
            assert 1 in punctuality.rests
            punctuality.rested(1)
        assert 1 not in punctuality.rests
    assert found == [0, 2, 4, 8, MOST_RESTS, MOST_RESTS, MOST_RESTS]


@pytest.mark.parametrize("forgiven", [False, True])
def test_whoever_answers_or_comes_back_begins_anew(forgiven):
    punctuality = Punctuality()
    assert [punctuality.lapse(1), punctuality.lapse(1)] == [0, 2]
    if forgiven:
        punctuality.forget(1)
    else:
        punctuality.answered(1, "train", 1.0)
    assert 1 not in punctuality.rests
    assert punctuality.lapse(1) == 0
