from dataclasses import dataclass

import pytest

from coterie.core import validate
from coterie.core.errors import SettingError
from coterie.core.validate import above, at_least, between, fraction, one_of


@dataclass
class Owner:
    k: int = 2
    lr: float = 0.5
    mode: str = "equal"
    most: int = 3


@pytest.mark.parametrize(
    ("rule", "name", "good", "bad", "says"),
    [
        (at_least(1), "k", {"k": 1}, {"k": 0}, "`k` of Owner must be at least 1, got 0"),
        (above(0), "lr", {"lr": 1e-9}, {"lr": 0.0}, "`lr` of Owner must be greater than 0"),
        (between(0, 1), "lr", {"lr": 0.999}, {"lr": 1.0}, "must lie between 0 and 1, got 1"),
        (fraction, "lr", {"lr": 1.0}, {"lr": 1.1}, "must be above 0 and at most 1, got 1.1"),
        (one_of("equal", "size"), "mode", {}, {"mode": "sise"}, "one of equal, size, got sise"),
    ],
)
def test_a_bound_may_be_reached_and_not_crossed(rule, name, good, bad, says):
    rule(Owner(**good), name)
    with pytest.raises(SettingError) as refusal:
        rule(Owner(**bad), name)
    assert says in str(refusal.value)


def test_a_setting_is_compared_with_another_quantity():
    validate.at_most_clients(Owner(k=4), "k", 4)
    with pytest.raises(SettingError, match="at most the number of clients, 4, got 5"):
        validate.at_most_clients(Owner(k=5), "k", 4)
    validate.at_least_as_many(Owner(most=2), "most", "k")
    with pytest.raises(SettingError, match="at least `k`, 2, got 1"):
        validate.at_least_as_many(Owner(most=1), "most", "k")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", True, None])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(SettingError, match="`lr` of Owner must be a finite number"):
        validate.at_least(0)(Owner(lr=value), "lr")


def test_a_whole_number_must_be_one():
    with pytest.raises(SettingError, match=r"`k` of Owner must be a whole number, got 1\.5"):
        validate.at_least(1)(Owner(k=1.5), "k")


def test_a_misspelt_choice_gets_a_suggestion():
    with pytest.raises(SettingError, match="did you mean `size`"):
        validate.one_of("equal", "size")(Owner(mode="sise"), "mode")
