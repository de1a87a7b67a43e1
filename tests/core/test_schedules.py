from itertools import pairwise
from types import SimpleNamespace

import pytest

from coterie.core.schedules import SCHEDULES


@pytest.mark.parametrize("name", ["constant", "exponential", "step", "cosine"])
def test_every_schedule_begins_with_the_whole_step_and_never_grows(name):
    training = SimpleNamespace(lr=0.1, decay=0.9, schedule_rounds=5)
    factors = [SCHEDULES[name](round, training) for round in range(20)]
    assert factors[0] == 1
    assert all(before >= after >= 0 for before, after in pairwise(factors))


def test_half_a_cosine_is_symmetric():
    training = SimpleNamespace(lr=0.1, decay=1.0, schedule_rounds=10)
    factors = [SCHEDULES["cosine"](round, training) for round in range(11)]
    assert [a + b for a, b in zip(factors, factors[::-1], strict=True)] == pytest.approx([1] * 11)
