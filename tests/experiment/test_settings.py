from dataclasses import asdict, dataclass

import pytest

from coterie.core.algorithm import traits_of
from coterie.core.errors import SettingError
from coterie.experiment.settings import (
    RunSettings,
    check_no_clash,
    make_settings,
    parse_grid,
    parse_settings,
    settings_of,
)
from coterie.networks import Mlp
from coterie.registry import resolve
from coterie.shelves import ALGORITHMS


@dataclass(frozen=True, kw_only=True)
class Mine:
    rate: float = 1
    count: int = 2
    where: str


def test_settings_are_the_same_by_default_and_as_they_are_read_again():
    """A run is told from others by its settings as JSON, in which 1 and 1.0 differ."""
    made = make_settings(Mine, {"where": "here"})
    words = [f"{name}={value}" for name, value in asdict(made).items()]
    again = make_settings(Mine, parse_settings(words, [Mine]))
    assert repr(made) == repr(again)
    assert repr(made.rate) == "1.0"


def test_a_setting_without_a_default_must_be_given():
    with pytest.raises(SettingError, match="`where` of Mine has no default: say where="):
        make_settings(Mine, {"rate": 2})


def test_two_owners_must_not_share_a_setting():
    @dataclass(frozen=True, kw_only=True)
    class Other:
        count: int = 1

    check_no_clash([Mine, RunSettings])
    with pytest.raises(SettingError, match="`count` is a setting of Mine and of Other"):
        check_no_clash([Mine, Other, RunSettings])


@pytest.mark.parametrize(("text", "value"), [("64", 64), ("64,32", "64,32"), ("auto", "auto")])
def test_a_whole_number_or_text_is_what_it_reads_as(text, value):
    (found,) = parse_settings([f"hidden={text}"], [Mlp]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_number_of_clusters_can_be_found_whatever_the_algorithm(name):
    """Only the setting that says how many clusters there are can be `auto`."""
    kind = resolve("algorithm", name)
    clusters = traits_of(kind()).clusters
    for setting in settings_of(kind):
        grid = parse_grid([f"{setting.name}=auto"], kind)[1]
        assert set(grid) == ({setting.name} & {clusters})
