from dataclasses import dataclass

import pytest

from coterie.core import validate
from coterie.core.errors import SettingError


@dataclass
class Owner:
    k: int = 2
    lr: float = 0.5
    mode: str = "equal"
    most: int = 3


@pytest.mark.parametrize(
    ("check", "arguments", "good", "bad", "says"),
    [
        ("at_least", ("k", 1), {"k": 1}, {"k": 0}, "`k` of Owner must be at least 1, got 0"),
        ("above", ("lr", 0), {"lr": 1e-9}, {"lr": 0.0}, "`lr` of Owner must be greater than 0"),
        ("between", ("lr", 0, 1), {"lr": 0.999}, {"lr": 1.0}, "must lie between 0 and 1, got 1"),
        ("fraction", ("lr",), {"lr": 1.0}, {"lr": 1.1}, "must be above 0 and at most 1, got 1.1"),
        (
            "at_most_clients",
            ("k", 4),
            {"k": 4},
            {"k": 5},
            "at most the number of clients, 4, got 5",
        ),
        ("at_least_as_many", ("most", "k"), {"most": 2}, {"most": 1}, "at least `k`, 2, got 1"),
        (
            "one_of",
            ("mode", ["equal", "size"]),
            {},
            {"mode": "sise"},
            "one of equal, size, got sise",
        ),
    ],
)
def test_a_bound_may_be_reached_and_not_crossed(check, arguments, good, bad, says):
    getattr(validate, check)(Owner(**good), *arguments)
    with pytest.raises(SettingError) as refusal:
        getattr(validate, check)(Owner(**bad), *arguments)
    assert says in str(refusal.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", True, None])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(SettingError, match="`lr` of Owner must be a finite number"):
        validate.at_least(Owner(lr=value), "lr", 0)


def test_a_whole_number_must_be_one():
    with pytest.raises(SettingError, match=r"`k` of Owner must be a whole number, got 1\.5"):
        validate.at_least(Owner(k=1.5), "k", 1)


def test_a_misspelt_choice_gets_a_suggestion():
    with pytest.raises(SettingError, match="did you mean `size`"):
        validate.one_of(Owner(mode="sise"), "mode", ["equal", "size"])
