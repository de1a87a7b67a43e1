import pytest

import coterie
from coterie.core.aliases import OTHER_NAMES, meant_names, plain_word
from coterie.core.errors import SettingError, did_you_mean
from coterie.experiment.comparison import Comparison
from coterie.experiment.plan import make_plan
from coterie.experiment.settings import RunSettings, setting_names
from coterie.shelves import SHELVES


def every_setting():
    owners = [RunSettings, *(kind for shelf in SHELVES.values() for kind in shelf.values())]
    return {*setting_names(*owners), "network"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("K", "k"),
        ("n_clusters", "k"),
        ("num-clusters", "k"),
        ("learning_rate", "lr"),
        ("step_size", "lr"),
        ("batch_size", "batch"),
        ("random_state", "seed"),
        ("local_epochs", "epochs"),
        ("num_rounds", "rounds"),
        ("weightDecay", "weight_decay"),
        ("hidden_layer_sizes", "hidden"),
        ("n_init", "starts"),
    ],
)
def test_what_others_call_a_setting_is_told_as_ours(word, meant):
    assert meant in meant_names(word)
    # In a sentence it comes before all that is merely spelled alike.
    assert did_you_mean(word, every_setting()).startswith(f"; did you mean `{meant}`")


def test_a_word_is_known_however_it_is_written():
    for own, others in OTHER_NAMES.items():
        for word in others.split():
            assert word == plain_word(word), "the table has words as they are looked for"
            assert own in meant_names(word.upper())


def test_a_word_that_is_a_setting_of_the_run_is_that_setting():
    with_epochs = make_plan(["fedavg", "rotated-digits", "epochs=2"])
    assert with_epochs.algorithm.epochs == 2
    with pytest.raises(SettingError, match=r"named epochs; did you mean `rounds`\?"):
        make_plan(["k-fed", "rotated-digits", "epochs=2"])


def test_an_algorithm_in_python_and_a_comparison_know_the_words_too():
    with pytest.raises(
        SettingError, match=r"IFCA has no setting named n_clusters; did you mean `k`"
    ):
        coterie.IFCA(n_clusters=3)
    with pytest.raises(SettingError, match=r"named learning_rate; did you mean `lr`"):
        Comparison.parse(["ifca,local", "rotated-digits", "learning_rate=1"])


def test_nothing_is_meant_by_a_word_that_is_nothing():
    assert meant_names("xyzzy") == []
    assert did_you_mean("xyzzy", ["k", "lr"]) == ""
