import math
from types import SimpleNamespace

import pytest

from coterie.experiment.rates import Rate, RatePoint, fit_power, rate_rows, theory_law

ENTRIES = [
    SimpleNamespace(name=f"m = {m}", template="m = {m}", values={"m": m}) for m in (4, 1, 16)
] + [SimpleNamespace(name="other", template="other", values={})]


def record(numbers, seeds=4):
    """What a recipe keeps: mean and deviation of the distance of each entry."""
    entries = {name: {"distance": list(number)} for name, number in numbers.items()}
    return {"seeds": dict.fromkeys(numbers, seeds), "entries": entries}


def rows(numbers, **settings):
    rate = Rate("fresh", "m = {m}", "m", -0.5, **settings)
    return rate_rows([rate], ENTRIES, record(numbers))[0]


def test_the_slope_by_hand():
    # log2 of x: 0, 2, 4; of y: 3, 2, 0. Slope: (-2 x 3 + 0 + 2 x 0) / (4 + 0 + 4) = -3/4.
    points = [RatePoint(1, 8.0, 0, 1), RatePoint(4, 4.0, 0, 1), RatePoint(16, 1.0, 0, 1)]
    law = fit_power(points)
    assert law.slope == pytest.approx(-0.75)
    # The line goes through the middle of the logarithms, 2 and 5/3: at x = 1 it is 19/6.
    assert law.factor == pytest.approx(2 ** (19 / 6))
    assert law.value(4) == pytest.approx(2 ** (5 / 3))


def test_the_error_of_the_slope_by_hand():
    # Two points a factor e apart: the slope is the difference of two logarithms, each of which has
    # a standard error of 10 % / sqrt(4) = 0.05.
    points = [RatePoint(1, 2.0, 0.2, 4), RatePoint(math.e, 5.0, 0.5, 4)]
    assert fit_power(points).error == pytest.approx(0.05 * math.sqrt(2))


def test_one_x_gives_no_slope():
    assert fit_power([]) is None
    assert fit_power([RatePoint(3, 1.0, 0, 1), RatePoint(3, 2.0, 0, 1)]) is None


def test_the_slope_of_the_theory_is_as_high_as_the_points():
    rate = Rate("fresh", "m = {m}", "m", -0.5)
    law = theory_law(rate, [RatePoint(1, 2.0, 0, 1), RatePoint(4, 4.0, 0, 1)])
    assert law.value(2) == pytest.approx(math.sqrt(8))
    assert law.value(8) == pytest.approx(math.sqrt(8) / 2)


def test_a_row_tells_the_slope_and_whether_it_is_that_of_the_theory():
    numbers = {"m = 1": (4.0, 0), "m = 4": (2.0, 0), "m = 16": (1.0, 0), "other": (9.0, 0)}
    assert rows(numbers) == [
        "distance by m: fresh",
        "distance",
        "m = 1 to 16",
        "-0.5",
        "-0.500 ± 0.000",
        "reached",
    ]
    steeper = {**numbers, "m = 16": (0.5, 0)}
    assert rows(steeper)[-1] == "off by -0.250"
    assert rows(steeper, bound=True)[-1] == "within the bound"
    assert rows(steeper, bound=True)[3] == "at most -0.5"
    flatter = {**numbers, "m = 16": (4.0, 0)}
    assert rows(flatter, bound=True)[-1] == "off by +0.500"


def test_only_the_points_that_the_theory_speaks_of_are_fitted():
    numbers = {"m = 1": (99.0, 0), "m = 4": (2.0, 0), "m = 16": (1.0, 0)}
    assert rows(numbers, least=2.0)[2:] == ["m = 4 to 16", "-0.5", "-0.500 ± 0.000", "reached"]


def test_what_was_not_run_is_said():
    assert rows({})[2:] == ["m", "-0.5", "not run", ""]
    assert rows({"m = 4": (2.0, 0)})[2:] == ["m = 4 to 4", "-0.5", "not run", ""]


def test_a_number_of_zero_has_no_logarithm_and_is_left_out():
    numbers = {"m = 1": (0.0, 0), "m = 4": (2.0, 0), "m = 16": (1.0, 0)}
    assert rows(numbers)[4] == "-0.500 ± 0.000"
