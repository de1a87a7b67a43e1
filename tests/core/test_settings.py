import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest

from coterie import IFCA, KFed
from coterie.core.errors import SettingError
from coterie.core.settings import Settings, added_settings, identifying_settings, setting
from coterie.networks import Mlp


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


@dataclass(frozen=True, kw_only=True)
class Grown(Settings):
    k: int = setting(2, "clusters")
    clip: float = setting(0.5, "came later, with another default", added=True, before=0.0)
    way: str = setting("plain", "came later", added=True)


def test_what_was_added_is_known_by_what_it_was_before():
    assert added_settings(Grown) == {"clip": 0.0, "way": "plain"}
    assert identifying_settings(Grown(clip=0.0)) == {"k": 2}
    assert identifying_settings(Grown(way="other")) == {"k": 2, "clip": 0.5, "way": "other"}


def test_a_variant_may_give_a_setting_another_default_and_meaning():
    assert Yours().k == 5
    assert fields(Yours)[0].metadata["meaning"] == "more clusters"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: IFCA(4), r"settings are given by name: IFCA\(k=4\), got IFCA\(4\)"),
        (lambda: KFed(4, 2), r"KFed\(k=4\), got KFed\(4, 2\)"),
        (lambda: IFCA(ks=4), "IFCA has no setting named ks; did you mean"),
        (lambda: Mlp(zzz=4), r"Mlp has no setting named zzz \(settings: hidden"),
    ],
)
def test_what_is_wrong_with_settings_is_said_in_a_sentence(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()


def test_settings_can_be_copied_pickled_and_replaced():
    ifca = IFCA(k=3)
    assert copy.deepcopy(ifca) == pickle.loads(pickle.dumps(ifca)) == replace(IFCA(), k=3) == ifca
