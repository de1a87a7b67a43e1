from coterie.experiment.recipe_entries import Entry, combine_values


def test_values_of_an_entry_itself_are_taken_as_they_are():
    own = [{"k": 1}, {"k": 2}]
    assert combine_values(own, {"other": [{"k": 3}]}) == own


def test_one_list_may_be_named_alone():
    raw = {"name": "k = {k}", "run": "ifca k={k}", "quick": "rounds=2", "each": "sizes"}
    entries = list(Entry.expand(raw, {"sizes": [{"k": 2}, {"k": 3, "quick": False}]}))
    assert [each.name for each in entries] == ["k = 2", "k = 3"]
    assert [each.quick for each in entries] == ["rounds=2", None]
