import json

import pytest

from coterie import cli
from coterie.core.errors import SettingError
from coterie.experiment import recipes
from coterie.experiment.catalogue import planned

ALL = recipes.all_recipes()


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_every_entry_can_be_run_and_every_name_is_known(recipe):
    names = [entry.name for entry in recipe.entries]
    assert len(set(names)) == len(names)
    for mode in recipes.MODES:
        assert recipe.minutes[mode] > 0
        for entry in recipe.chosen(mode):
            planned([*entry.words(mode), "seed=0"])
    for entry in recipe.entries:
        assert set(entry.tolerance) <= set(entry.published)
    for order in recipe.order:
        assert set(order) <= set(names)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_what_was_measured_belongs_to_the_recipe(recipe):
    for mode, record in recipe.measured.items():
        names = {entry.name for entry in recipe.chosen(mode)}
        assert set(record["entries"]) == names


TINY = """
item = "Table 0"
title = "a test"
paper = "nobody"
seeds = 2
minutes = { quick = 1, full = 1 }
order = [["local", "ifca"]]

[[entry]]
name = "local"
run = "local rotated-digits clients=8 rounds=3"
quick = "rounds=2"
published = { accuracy = 0.4, ari = 0.0 }
tolerance = { accuracy = 0.4, ari = 0.0 }

[[entry]]
name = "ifca"
run = "ifca rotated-digits clients=8 rounds=3 k=4"
published = { accuracy = 0.99 }
tolerance = { accuracy = 0.0 }
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    (tmp_path / "recipes" / "nobody").mkdir(parents=True)
    (tmp_path / "recipes" / "nobody" / "table0.toml").write_text(TINY)
    monkeypatch.setattr(recipes, "folder", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_is_run_and_its_numbers_are_kept(tiny, capsys):
    assert cli.main(["reproduce", "nobody/table0", "--quick"]) == 0
    said = capsys.readouterr().out
    assert "| local | accuracy | 0.4" in said
    assert "reached" in said
    assert "not run" in said  # ifca has no quick version
    kept = json.loads((tiny / "recipes" / "nobody" / "table0.json").read_text())
    assert set(kept) == {"quick"}
    assert kept["quick"]["seeds"] == 1
    assert kept["quick"]["entries"]["local"]["ari"] == [0.0, 0.0]
    assert cli.main(["reproduce"]) == 0
    assert "| quick " in capsys.readouterr().out


def test_quick_settings_take_the_place_of_the_full_ones(tiny):
    recipe = recipes.recipe("nobody/table0")
    assert recipe.entries[0].words("full")[-1] == "rounds=3"
    assert recipe.entries[0].words("quick")[-1] == "rounds=2"
    assert "rounds=3" not in recipe.entries[0].words("quick")
    assert [entry.name for entry in recipe.chosen("quick")] == ["local"]


def test_an_order_that_does_not_hold_is_said(tiny):
    recipe = recipes.recipe("nobody/table0")
    numbers = {"local": {"accuracy": (0.9, 0.0)}, "ifca": {"accuracy": (0.8, 0.0)}}
    _, rows, orders = recipe.verdicts(numbers)
    assert orders == ["local < ifca in accuracy: does NOT hold"]
    assert rows[2][-1] == "off by -0.1900"


def test_an_unknown_recipe_is_refused_with_the_near_ones(tiny):
    with pytest.raises(SettingError, match="no recipe is named nobody/table1; did you mean"):
        recipes.recipe("nobody/table1")
