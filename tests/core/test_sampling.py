import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.sampling import FixedSize, Poisson, draw_participants


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_fixed_number_takes_part_or_as_many_as_there_are_or_are_needed():
    for count, at_least, expected in ((3, 0, 3), (3, 5, 5), (9, 0, 7), (3, 9, 7)):
        ids = FixedSize(count).draw(0, 7, generator(), at_least)
        assert len(ids) == expected
        assert bool((ids.diff() > 0).all())


def test_in_poisson_sampling_the_number_varies_and_nobody_may_take_part():
    counts = [len(Poisson(0.3).draw(0, 10, generator(seed))) for seed in range(200)]
    assert 2.5 < sum(counts) / 200 < 3.5
    assert 0 in counts
    assert len(Poisson(1.0).draw(0, 10, generator())) == 10
    # Independent of each other: the variance is m q (1 - q) = 2.1, that of a fixed number is 0.
    assert 1.4 < torch.tensor(counts).double().var() < 2.9


def test_where_more_are_needed_the_next_ones_are_added():
    few = Poisson(0.1).draw(0, 10, generator(3))
    more = Poisson(0.1).draw(0, 10, generator(3), at_least=6)
    assert len(more) == 6
    assert set(few.tolist()) <= set(more.tolist())


@pytest.mark.parametrize("drawn", [[1, 1], [2, 1], [0, 5], [-1], [[1]], [0.5]])
def test_a_sampling_that_draws_what_is_no_client_is_refused(drawn):
    class Wrong:
        def draw(self, round, population, generator, at_least=0):
            return torch.tensor(drawn)

    with pytest.raises(CoterieError, match="Wrong must draw clients by increasing numbers"):
        draw_participants(Wrong(), 0, 5, generator())
