from dataclasses import FrozenInstanceError, dataclass, fields

import pytest

from coterie.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class Mine:
    k: int = setting(2, "clusters")


@dataclass(frozen=True, kw_only=True)
class Yours(Mine):
    k: int = setting(5, "more clusters")


def test_a_setting_has_its_default_and_its_meaning():
    assert Mine().k == 2
    assert fields(Mine)[0].metadata["meaning"] == "clusters"


def test_a_setting_is_set_by_name_and_then_stays():
    mine = Mine(k=3)
    assert mine.k == 3
    with pytest.raises(FrozenInstanceError):
        mine.k = 4


def test_a_variant_may_give_a_setting_another_default_and_meaning():
    assert Yours().k == 5
    assert fields(Yours)[0].metadata["meaning"] == "more clusters"
